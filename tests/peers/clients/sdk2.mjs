// A visit with version 2 of the TypeScript SDK.
//
//   node clients/sdk2.mjs URL [--era legacy|auto|modern] [--tool NAME] [--arguments JSON]
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

import { readOptions, visit } from './visit.mjs';

const options = readOptions();
const mode = options.era === 'modern' ? { pin: '2026-07-28' } : options.era;
const client = new Client({ name: 'visit-sdk2', version: '1.0.0' }, {
  capabilities: {},
  versionNegotiation: { mode },
});
const transport = new StreamableHTTPClientTransport(options.url);
await client.connect(transport);
const seen = await visit(client, options);
const era = transport.protocolVersion >= '2026-07-28' ? 'modern' : 'legacy';
if (transport.sessionId !== undefined) await transport.terminateSession();
await client.close();
console.log(JSON.stringify({ era, ...seen }));
