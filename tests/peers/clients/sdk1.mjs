// Version 1 of the TypeScript SDK, which knows only the legacy era.
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

/** Connects to `target`: a URL, or a command for stdio. */
export async function connect({ transport, target, session }) {
  const client = new Client({ name: 'visit-sdk1', version: '1.0.0' }, { capabilities: {} });
  const way = {
    http: () => new StreamableHTTPClientTransport(new URL(target), { sessionId: session }),
    sse: () => new SSEClientTransport(new URL(target)),
    stdio: () => new StdioClientTransport({ command: target[0], args: target.slice(1), env: process.env }),
  }[transport]();
  await client.connect(way);
  return {
    client,
    era: 'legacy',
    session: () => way.sessionId,
    call: (name, args, options) => client.callTool({ name, arguments: args }, undefined, options),
    async leave() {
      if (way.sessionId !== undefined && way.terminateSession !== undefined) await way.terminateSession();
      await client.close();
    },
  };
}
