// The client that the conformance suite's client scenarios are run with, behind a gateway:
//
//   WEIR_BINARY=... conformance client --command "node clients/conform.mjs" --requirements 2026-07-28
//
// The suite appends the URL of its server. In between stands what WEIR_WAY says:
//   one      a gateway with the server as its upstream `mock`, at /mcp/mock (the default)
//   all      the same at /mcp
//   connect  `weir connect`
// Towards that, this is an ordinary client: it uses everything that is there, as each scenario wants it.
import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const url = process.argv.at(-1);
const { WEIR_BINARY: weir, WEIR_WAY: way = 'one', MCP_CONFORMANCE_SCENARIO: scenario } = process.env;
const modern = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION >= '2026-07-28';
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? '{}');

// What the suite's servers do in answer to calls that these scenarios do not ask for, or on purpose: the client SDK
// gives up what it gets, the gateway does not.
const FAILING = {
  'json-schema-ref-no-deref': ['lookup_user'],
  'sep-2322-client-request-state': ['test_mrtr_no_result_type'],
}[scenario] ?? [];

if (way === 'connect') {
  await visit(new StdioClientTransport({ command: weir, args: ['connect', url], env: process.env }));
} else {
  const gateway = await start(url);
  try {
    await visit(new StreamableHTTPClientTransport(new URL(way === 'all' ? '/mcp' : '/mcp/mock', gateway.address)));
  } finally {
    await gateway.stop();
  }
}

async function visit(transport) {
  const client = new Client({ name: 'conform', version: '1.0.0' }, {
    capabilities: { elicitation: { form: { applyDefaults: true } }, sampling: {}, roots: {} },
    versionNegotiation: { mode: modern ? 'auto' : 'legacy' },
  });
  client.setRequestHandler('elicitation/create', async () => ({
    action: 'accept',
    content: scenario === 'sep-2322-client-request-state' ? { confirmed: true } : {},
  }));
  await client.connect(transport);
  const can = client.getServerCapabilities() ?? {};
  const { tools } = can.tools || modern ? await client.listTools() : { tools: [] };
  for (const call of calls(tools)) {
    await client.callTool(call).catch((error) => {
      if (!FAILING.includes(native(call.name))) throw error;
    });
  }
  if (can.resources) {
    const { resources } = await client.listResources();
    for (const { uri } of resources) await client.readResource({ uri });
  }
  if (can.prompts) {
    const { prompts } = await client.listPrompts();
    for (const { name } of prompts) await client.getPrompt({ name });
  }
  await client.close();
}

/** The calls that a scenario asks for, or else one of each tool. */
function calls(tools) {
  const listed = (name) => tools.find((tool) => native(tool.name) === name);
  if (context.toolCalls !== undefined) {
    return context.toolCalls.map((call) => ({ ...call, name: listed(call.name).name }));
  }
  const echo = listed('json_schema_echo');
  if (echo !== undefined) {
    return [{ name: echo.name, arguments: { schema: listed('json_schema_2020_12_tool').inputSchema } }];
  }
  return tools.map(({ name, inputSchema }) => ({ name, arguments: example(inputSchema) }));
}

/** The name of a tool as its server knows it. */
function native(name) {
  return name.replace(/^mock__/, '');
}

/** Arguments that a schema allows. */
function example({ properties = {} }) {
  const values = { number: 5, integer: 5, string: 'text', boolean: true };
  const named = Object.entries(properties).filter(([, { type }]) => type in values);
  return Object.fromEntries(named.map(([name, { type }]) => [name, values[type]]));
}

/** Starts a gateway in front of `upstream`; resolves when it has looked at it once. */
async function start(upstream) {
  const directory = await mkdtemp(join(tmpdir(), 'weir-conform-'));
  const config = join(directory, 'weir.toml');
  const cache = JSON.stringify(process.env.WEIR_CACHE ?? join(directory, 'cache'));
  await writeFile(config, `listen = "127.0.0.1:0"\ncache_dir = ${cache}\n[upstreams.mock]\nurl = "${upstream}"\n`);
  const gateway = spawn(weir, ['serve', '--config', config], { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = new Promise((resolve) => gateway.once('exit', resolve));
  const address = await new Promise((resolve, reject) => {
    createInterface({ input: gateway.stderr }).on('line', (line) => {
      if (process.env.WEIR_VERBOSE) console.error(line);
      const found = /listening on (http:\/\/[0-9.:]+)/.exec(line);
      if (found) resolve(found[1]);
    });
    gateway.once('exit', (code) => reject(new Error(`the gateway ended with ${code}`)));
  });
  while (!(await fetch(`${address}/readyz`)).ok) await new Promise((resolve) => setTimeout(resolve, 20));
  return {
    address,
    async stop() {
      gateway.kill('SIGTERM');
      await ended;
      await rm(directory, { recursive: true });
    },
  };
}
