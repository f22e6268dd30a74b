// What every JavaScript client does once it is connected: look at all there is, use one of each, tell it in one line.
import { parseArgs } from 'node:util';

/** Reads `URL [--era E] [--tool NAME] [--arguments JSON]`. */
export function readOptions() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      era: { type: 'string', default: 'legacy' },
      tool: { type: 'string' },
      arguments: { type: 'string', default: '{}' },
    },
  });
  if (positionals.length !== 1) throw new Error('expected one argument: the URL of the server');
  return { ...values, url: new URL(positionals[0]), arguments: JSON.parse(values.arguments) };
}

/** Visits a connected client; resolves with what it saw. */
export async function visit(client, options) {
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
  if (options.tool !== undefined) {
    seen.call = await client.callTool({ name: options.tool, arguments: options.arguments });
  }
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
