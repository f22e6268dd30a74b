// Version 2 of the TypeScript SDK.
import { Client, SSEClientTransport, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

/** Connects to `target`: a URL, or a command for stdio. */
export async function connect({ transport, target, era, session }) {
  const mode = era === 'modern' ? { pin: '2026-07-28' } : era;
  const client = new Client({ name: 'visit-sdk2', version: '1.0.0' }, {
    capabilities: {},
    versionNegotiation: { mode },
  });
  const way = {
    http: () => new StreamableHTTPClientTransport(new URL(target), { sessionId: session }),
    sse: () => new SSEClientTransport(new URL(target)),
    stdio: () => new StdioClientTransport({ command: target[0], args: target.slice(1), env: process.env }),
  }[transport]();
  await client.connect(way);
  return {
    client,
    era: client.getNegotiatedProtocolVersion() >= '2026-07-28' ? 'modern' : 'legacy',
    session: () => way.sessionId,
    call: (name, args, options) => client.callTool({ name, arguments: args }, options),
    async leave() {
      if (way.sessionId !== undefined && way.terminateSession !== undefined) await way.terminateSession();
      await client.close();
    },
  };
}
