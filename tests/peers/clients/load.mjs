// Calls `echo` again and again with the TypeScript SDK until SIGTERM. Prints a JSON object: how many calls were right, and
// what the others came to.
//
//   node clients/load.mjs URL TOOL PAUSE [--sdk 1|2] [--era legacy|modern]
//
// PAUSE is the time between two calls, in milliseconds.
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';

const { values: options, positionals: [target, tool, pause] } = parseArgs({
  allowPositionals: true,
  options: {
    sdk: { type: 'string', default: '2' },
    era: { type: 'string', default: 'legacy' },
  },
});
let over = false;
process.on('SIGTERM', () => { over = true; });
const { connect } = await import(`./sdk${options.sdk}.mjs`);
const connection = await connect({ transport: 'http', target, era: options.era });
console.log('connected');
const failures = [];
let right = 0;
for (let number = 0; !over; number += 1) {
  const message = `sdk${options.sdk}-${process.pid}-${number}`;
  try {
    const { content } = await connection.call(tool, { message });
    if (content[0].text === message) right += 1;
    else failures.push(`${message} was answered ${content[0].text}`);
  } catch (error) {
    failures.push(`${message}: ${error.message} ${error.cause ?? ''}`);
  }
  await sleep(Number(pause));
}
await connection.leave();
console.log(JSON.stringify({ right, failures }));
process.exit(0);
