// A tour with the TypeScript SDK: at each station a call, a list page by page, the notifications of a call, and a
// call that is cancelled. Prints one line of JSON: for each station, what worked, and why the rest did not.
//
//   node clients/tour.mjs STATIONS [--sdk 1|2] [--era legacy|auto|modern] [--transport http|sse|stdio] [--at-once N]
//
// STATIONS is a JSON array of `{ name, target, prefix, slow: { tool, short, long }, counts, pages }`: where to, what
// comes before the names of tools, the tool that takes its time and reports progress with the arguments for a short
// and for a long call, whether a tool `given_up` counts cancelled calls, and how many pages there must be.
import { parseArgs } from 'node:util';

const PATIENCE = 20_000;

const { values: options, positionals: [stations] } = parseArgs({
  allowPositionals: true,
  options: {
    sdk: { type: 'string', default: '2' },
    era: { type: 'string', default: 'legacy' },
    transport: { type: 'string', default: 'http' },
    'at-once': { type: 'string', default: '16' },
  },
});
const { connect } = await import(`./sdk${options.sdk}.mjs`);

const waiting = JSON.parse(stations);
const seen = {};
await Promise.all(Array.from({ length: Number(options['at-once']) }, async () => {
  for (let station = waiting.shift(); station !== undefined; station = waiting.shift()) {
    seen[station.name] = await visit(station);
  }
}));
console.log(JSON.stringify(seen));
// A client that could not leave must not keep the others waiting.
process.exit(0);

async function visit(station) {
  const result = { failures: [] };
  let connection;
  try {
    connection = await within(connect({ ...options, target: station.target }));
    result.era = connection.era;
  } catch (error) {
    result.failures.push(`connect: ${error.message}`);
    return result;
  }
  for (const [name, step] of Object.entries({ call, pages, notification, cancel })) {
    if (name === 'pages' && station.pages < 2) continue;
    try {
      await within(step(connection, station));
      result[name] = true;
    } catch (error) {
      result[name] = false;
      result.failures.push(`${name}: ${error.message}`);
    }
  }
  await within(connection.leave()).catch((error) => result.failures.push(`leave: ${error.message}`));
  return result;
}

async function call(connection, { prefix }) {
  const { content } = await connection.call(`${prefix}echo`, { message: 'hello' });
  if (!content[0].text.endsWith('hello')) throw new Error(`the answer is ${JSON.stringify(content)}`);
}

/** Version 2 of the SDK walks the pages by itself. */
async function pages({ client }, station) {
  const tools = [];
  let count = 0;
  let cursor;
  do {
    const page = await client.listTools(cursor === undefined ? undefined : { cursor });
    tools.push(...page.tools);
    count += 1;
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  const last = tools.some(({ name }) => name.endsWith('given_up'));
  if (!last || (options.sdk === '1' && count < station.pages)) throw new Error(`${count} of ${station.pages} pages`);
}

async function notification(connection, { prefix, slow }) {
  const heard = [];
  await connection.call(`${prefix}${slow.tool}`, slow.short, { onprogress: ({ progress }) => heard.push(progress) });
  if (heard.length < 2) throw new Error(`${heard.length} notifications of progress`);
  if (heard.some((progress, at) => at > 0 && progress <= heard[at - 1])) throw new Error(`progress ${heard}`);
}

async function cancel(connection, { prefix, slow, counts }) {
  const before = counts ? await givenUp(connection, prefix) : 0;
  const controller = new AbortController();
  // A server that reports no progress has the call by then as well.
  const late = setTimeout(() => controller.abort(), 2_000);
  const cancelled = await connection
    .call(`${prefix}${slow.tool}`, slow.long, { signal: controller.signal, onprogress: () => controller.abort() })
    .then(() => false, () => controller.signal.aborted);
  clearTimeout(late);
  if (!cancelled) throw new Error('the call ended before it was cancelled');
  if (!counts) return call(connection, { prefix });
  const end = Date.now() + 5_000;
  while (await givenUp(connection, prefix) <= before) {
    if (Date.now() > end) throw new Error('the server was not told');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function givenUp(connection, prefix) {
  const { content } = await connection.call(`${prefix}given_up`, {});
  return Number(content[0].text);
}

function within(promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing within ${PATIENCE} ms`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}
