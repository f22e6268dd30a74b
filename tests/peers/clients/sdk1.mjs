// A visit with version 1 of the TypeScript SDK, which knows only the legacy era.
//
//   node clients/sdk1.mjs URL [--tool NAME] [--arguments JSON]
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

import { readOptions, visit } from './visit.mjs';

const options = readOptions();
const client = new Client({ name: 'visit-sdk1', version: '1.0.0' }, { capabilities: {} });
const transport = new StreamableHTTPClientTransport(options.url);
await client.connect(transport);
const seen = await visit(client, options);
if (transport.sessionId !== undefined) await transport.terminateSession();
await client.close();
console.log(JSON.stringify({ era: 'legacy', ...seen }));
