// Calls tools with the TypeScript SDK, all at once on one connection. Prints a JSON array: the text or the error of each.
//
//   node clients/at_once.mjs URL CALLS [--sdk 1|2] [--era legacy|auto|modern]
//
// CALLS is a JSON array of `{ name, arguments }`.
import { parseArgs } from 'node:util';

const { values: options, positionals: [target, calls] } = parseArgs({
  allowPositionals: true,
  options: {
    sdk: { type: 'string', default: '2' },
    era: { type: 'string', default: 'legacy' },
  },
});
const { connect } = await import(`./sdk${options.sdk}.mjs`);
const connection = await connect({ transport: 'http', target, era: options.era });
const answers = await Promise.all(JSON.parse(calls).map(async (call) => {
  try {
    const { content } = await connection.call(call.name, call.arguments);
    return { text: content[0].text };
  } catch (error) {
    return { error: error.message };
  }
}));
console.log(JSON.stringify(answers));
await connection.leave();
process.exit(0);
