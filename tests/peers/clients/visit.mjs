// A visit with the TypeScript SDK: looks at all there is, uses one of each, tells in one line of JSON what it saw.
//
//   node clients/visit.mjs TARGET [--sdk 1|2] [--era legacy|auto|modern] [--transport http|sse|stdio]
//                          [--tool NAME] [--arguments JSON]
//
// TARGET is a URL; for stdio it is a command, as a JSON array.
import { parseArgs } from 'node:util';

const { values: options, positionals: [target] } = parseArgs({
  allowPositionals: true,
  options: {
    sdk: { type: 'string', default: '2' },
    era: { type: 'string', default: 'legacy' },
    transport: { type: 'string', default: 'http' },
    tool: { type: 'string' },
    arguments: { type: 'string', default: '{}' },
  },
});
const { connect } = await import(`./sdk${options.sdk}.mjs`);
const connection = await connect({ ...options, target: options.transport === 'stdio' ? JSON.parse(target) : target });
const seen = await visit(connection);
await connection.leave();
console.log(JSON.stringify({ era: connection.era, ...seen }));

async function visit({ client, call }) {
  const can = client.getServerCapabilities() ?? {};
  const seen = {
    server: client.getServerVersion()?.name,
    capabilities: Object.keys(can).sort(),
    tools: can.tools ? (await pages((page) => client.listTools(page), 'tools')).map(({ name }) => name) : [],
    resources: can.resources
      ? (await pages((page) => client.listResources(page), 'resources')).map(({ uri }) => uri)
      : [],
    prompts: can.prompts ? (await pages((page) => client.listPrompts(page), 'prompts')).map(({ name }) => name) : [],
  };
  if (options.tool !== undefined) seen.call = await call(options.tool, JSON.parse(options.arguments));
  if (seen.resources.length > 0) seen.resource = await client.readResource({ uri: seen.resources[0] });
  const simple = can.prompts ? await firstPromptWithoutArguments(client) : undefined;
  if (simple !== undefined) seen.prompt = await client.getPrompt({ name: simple });
  return seen;
}

async function pages(list, key) {
  const all = [];
  let cursor;
  do {
    const page = await list(cursor === undefined ? undefined : { cursor });
    all.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return all;
}

async function firstPromptWithoutArguments(client) {
  const prompts = await pages((page) => client.listPrompts(page), 'prompts');
  return prompts.find((prompt) => !prompt.arguments?.some((argument) => argument.required))?.name;
}
