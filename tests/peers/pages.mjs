// A small server on version 1 of the TypeScript SDK, on stdin and stdout: its list of tools has two pages, it reports
// progress, and counts the calls that were cancelled. It stands behind the proxies, which cannot page by themselves.
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js';

const object = (properties) => ({ type: 'object', properties, required: Object.keys(properties) });
const PAGES = [
  [
    { name: 'echo', description: 'Give back the message', inputSchema: object({ message: { type: 'string' } }) },
    {
      name: 'slow',
      description: 'Take that many seconds and report progress ten times',
      inputSchema: object({ seconds: { type: 'number' } }),
    },
  ],
  [
    {
      name: 'add',
      description: 'Add two numbers',
      inputSchema: object({ a: { type: 'number' }, b: { type: 'number' } }),
    },
    { name: 'given_up', description: 'How many slow calls were cancelled', inputSchema: object({}) },
  ],
];

const server = new Server({ name: 'pages', version: '1.0.0' }, { capabilities: { tools: {} } });
let givenUp = 0;

server.setRequestHandler(ListToolsRequestSchema, ({ params }) => {
  const page = params?.cursor === undefined ? 0 : Number(params.cursor);
  return { tools: PAGES[page], ...(page + 1 < PAGES.length && { nextCursor: String(page + 1) }) };
});

const tools = {
  echo: ({ message }) => message,
  add: ({ a, b }) => String(a + b),
  given_up: () => String(givenUp),
  async slow({ seconds }, { signal, sendNotification, _meta }) {
    signal.addEventListener('abort', () => (givenUp += 1), { once: true });
    for (let progress = 1; progress <= 10 && !signal.aborted; progress += 1) {
      await new Promise((resolve) => setTimeout(resolve, seconds * 100));
      if (_meta?.progressToken === undefined || signal.aborted) continue;
      const params = { progressToken: _meta.progressToken, progress, total: 10 };
      await sendNotification({ method: 'notifications/progress', params });
    }
    return `took ${seconds} seconds`;
  },
};

server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
  const text = await tools[params.name](params.arguments ?? {}, extra);
  return { content: [{ type: 'text', text }] };
});

await server.connect(new StdioServerTransport());
