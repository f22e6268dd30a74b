// A call that takes its time, over a network that breaks: tells in a line each what comes.
//
//   node clients/long_call.mjs URL TOOL [--sdk 1|2]
//   node clients/long_call.mjs URL TOOL --session ID --token EVENT
//
// With a session and an event id it is a client that was started anew and goes on with a call that another has made.
import { parseArgs } from 'node:util';

const { values: options, positionals: [target, tool] } = parseArgs({
  allowPositionals: true,
  options: {
    sdk: { type: 'string', default: '1' },
    session: { type: 'string' },
    token: { type: 'string' },
  },
});
const { connect } = await import(`./sdk${options.sdk}.mjs`);
const connection = await connect({ transport: 'http', target, era: 'legacy', session: options.session });
console.log(`session ${connection.session()}`);
const result = await connection.call(tool, { message: 'the end' }, {
  resumptionToken: options.token,
  onresumptiontoken: (token) => console.log(`token ${token}`),
  onprogress: ({ progress }) => console.log(`progress ${progress}`),
});
console.log(`result ${result.content[0].text}`);
await connection.leave();
