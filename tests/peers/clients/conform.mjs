// The client that the conformance suite's client scenarios are run with, behind a gateway:
//
//   WEIR_BINARY=... conformance client --command "node clients/conform.mjs" --requirements 2026-07-28
//
// The suite appends the URL of its server. In between stands what WEIR_WAY says:
//   one      a gateway with the server as its upstream `mock`, at /mcp/mock (the default)
//   all      the same at /mcp
//   connect  `weir connect`
// Towards that, this is an ordinary client: it uses everything that is there, as each scenario wants it. In the scenarios
// of authorization it is also the person who signs in, with `weir auth login`, as often as the gateway asks for it.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
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

// Weir's name at servers that read it from a document, as the suite expects it; nobody fetches it.
const DOCUMENT = 'https://conformance-test.local/client-metadata.json';
// More often than a server with good reasons asks for it, nobody signs in.
const PATIENCE = 3;

if (scenario?.startsWith('auth/')) {
  await authorized();
} else if (way === 'connect') {
  await visit(new StdioClientTransport({ command: weir, args: ['connect', url], env: process.env }));
} else {
  const gateway = await start(url);
  try {
    await visit(new StreamableHTTPClientTransport(new URL(way === 'all' ? '/mcp' : '/mcp/mock', gateway.address)));
  } finally {
    await gateway.stop();
  }
}

/** Signs in whenever the gateway asks for it, and does what the scenario wants. */
async function authorized() {
  const gateway = await start(url);
  try {
    for (let round = 0; ; round++) {
      const asked = gateway.asked();
      if (asked.length > 0) await gateway.signIn(asked.at(-1));
      try {
        await visit(new StreamableHTTPClientTransport(new URL('/mcp/mock', gateway.address)));
        return;
      } catch (error) {
        if (round === PATIENCE || !(await gateway.asks(asked.length))) throw error;
      }
    }
  } finally {
    await gateway.stop();
  }
}

/** What the configuration says of a login, as far as it is known before. */
async function login(directory) {
  const { client_id: id, client_secret: secret, private_key_pem: pem, signing_algorithm: algorithm } = context;
  const client = [`client_id = ${JSON.stringify(id ?? null)}`];
  if (secret !== undefined) client.push('client_secret = { env = "WEIR_CONFORM_SECRET" }');
  if (pem !== undefined) {
    await writeFile(join(directory, 'key.pem'), pem);
    client.push('private_key = { file = "key.pem" }', `algorithm = ${JSON.stringify(algorithm ?? 'ES256')}`);
  }
  if (scenario.includes('enterprise-managed')) {
    // The identity is Weir's own here: nobody serves the keys by which a caller's could be checked.
    const at = `token_endpoint = "${context.idp_token_endpoint}", client_id = "${context.idp_client_id}"`;
    client.push('subject_token = { env = "WEIR_CONFORM_IDENTITY" }', `identity_provider = { ${at} }`);
    return `auth = "exchange"\noauth = { ${client.join(', ')} }\n`;
  }
  if (context.valid_jwt !== undefined) {
    await writeFile(join(directory, 'workload.jwt'), `${context.valid_jwt}\n`);
    client.push('assertion = { file = "workload.jwt" }');
    return `auth = "jwt_bearer"\noauth = { ${client.join(', ')} }\n`;
  }
  const oauth = id === undefined ? '' : `oauth = { ${client.join(', ')} }\n`;
  if (scenario.includes('client-credentials')) return `auth = "client_credentials"\n${oauth}`;
  return id === undefined ? '' : `auth = "oauth"\n${oauth}`;
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
    const result = await client.callTool(call).catch((error) => {
      if (!FAILING.includes(native(call.name))) throw error;
    });
    // What the gateway tells a model, which would tell its user.
    const [said] = (result?.isError && result.content) || [];
    if (/needs a (new )?sign-in/.test(said?.text ?? '')) throw new Error(said.text);
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
  const head = `listen = "127.0.0.1:0"\ncache_dir = ${cache}\nclient_metadata_url = "${DOCUMENT}"\n`;
  const store = `[store]\npath = "logins.redb"\nkey = { env = "WEIR_CONFORM_KEY" }\n`;
  const auth = scenario?.startsWith('auth/') ? await login(directory) : '';
  await writeFile(config, `${head}${store}[upstreams.mock]\nurl = "${upstream}"\n${auth}`);
  const env = {
    ...process.env,
    WEIR_CONFORM_KEY: Buffer.alloc(32, 'k').toString('base64'),
    WEIR_CONFORM_SECRET: context.client_secret ?? 'none',
    WEIR_CONFORM_IDENTITY: context.idp_id_token ?? 'none',
  };
  const gateway = spawn(weir, ['serve', '--config', config], { env, stdio: ['ignore', 'ignore', 'pipe'] });
  const asked = [];
  const ended = new Promise((resolve) => gateway.once('exit', resolve));
  const address = await new Promise((resolve, reject) => {
    createInterface({ input: gateway.stderr }).on('line', (line) => {
      if (process.env.WEIR_VERBOSE) console.error(line);
      const command = /"upstream needs a sign-in".*"command":"weir auth login mock --config \S+?( --scopes '?(.*?)'?)?"/.exec(line);
      if (command) asked.push(command[2] ?? '');
      const found = /listening on (http:\/\/[0-9.:]+)/.exec(line);
      if (found) resolve(found[1]);
    });
    gateway.once('exit', (code) => reject(new Error(`the gateway ended with ${code}`)));
  });
  while (!(await fetch(`${address}/readyz`)).ok) await new Promise((resolve) => setTimeout(resolve, 20));
  return {
    address,
    /** Each time that the gateway has asked for a sign-in, the scopes that it asked for more. */
    asked: () => [...asked],
    /** Whether it asks more often than `count` times. */
    async asks(count) {
      for (let wait = 0; wait < 500 && asked.length <= count; wait++) await new Promise((r) => setTimeout(r, 20));
      return asked.length > count;
    },
    /** Signs in as the suite's servers do it: they send the browser back at once. */
    async signIn(scopes) {
      const before = asked.length;
      const more = scopes ? ['--scopes', scopes] : [];
      const login = spawn(weir, ['auth', 'login', 'mock', '--no-browser', '--config', config, ...more], {
        env,
        stdio: ['ignore', 'inherit', 'pipe'],
      });
      const said = createInterface({ input: login.stderr });
      said.on('line', async (line) => {
        console.error(line);
        if (!line.trim().startsWith('http')) return;
        const answer = await fetch(line.trim(), { redirect: 'manual' });
        const back = answer.headers.get('location');
        if (back) await fetch(new URL(back, line.trim()));
        else login.kill('SIGINT');
      });
      const [code] = await once(login, 'exit');
      if (code !== 0) throw new Error(`weir auth login ended with ${code}`);
      // The gateway notices by itself. If the new login does not open the server, it asks again.
      for (let wait = 0; wait < 1500 && asked.length === before; wait++) {
        if (!(await (await fetch(`${address}/readyz`)).text()).includes('auth_')) return;
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    },
    async stop() {
      gateway.kill('SIGTERM');
      await ended;
      await rm(directory, { recursive: true });
    },
  };
}
