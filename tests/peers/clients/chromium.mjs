// A real browser with scripts switched off. Opens a link, takes one step after another, and after each page says what
// somebody sees there, as a line of JSON. A step is the words of a button to press, or `link` to follow, `open` to unfold,
// or `fill`, the label of a field and what to write there.
//
// Its argument is JSON: the program, the link, the steps, the size of the window and its colours, the name under which an
// authorization server finds who sits there, and where pictures are put.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const { program, link, steps, width, height, scheme, person, pictures } = JSON.parse(process.argv[2]);
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const browser = await chromium.launch({
  executablePath: program,
  // What it would ask of the world on its own account.
  args: ['--disable-quic', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});
try {
  const context = await browser.newContext({
    viewport: { width, height },
    isMobile: width < 600,
    hasTouch: width < 600,
    javaScriptEnabled: false,
    colorScheme: scheme,
  });
  await context.addCookies([{ name: 'person', value: person, url: new URL(link).origin }]);
  const page = await context.newPage();
  // What a page keeps from whom: looked for in a copy of it, where scripts may run.
  const other = await browser.newContext({ viewport: { width, height }, colorScheme: scheme });
  const copy = await other.newPage();
  const inspect = async (html) => {
    await copy.setContent(html.replace(/<meta http-equiv[^>]*>/gi, ''));
    await copy.addScriptTag({ content: axe });
    const { violations } = await copy.evaluate(() => globalThis.axe.run());
    const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
    return grave.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' ')}`);
  };
  const fetched = [];
  const complaints = [];
  page.on('request', (request) => fetched.push(request.url()));
  page.on('console', (message) => complaints.push(message.text()));
  const look = async (name) => {
    await page.screenshot({ path: `${pictures}-${name}.png`, fullPage: true });
    const { innerText, scrollWidth, paint } = await page.evaluate(() => ({
      innerText: document.body.innerText,
      scrollWidth: document.documentElement.scrollWidth,
      paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
    }));
    const barriers = await inspect(await page.content());
    const seen = { url: page.url(), text: innerText, width: scrollWidth, paint, barriers };
    console.log(JSON.stringify({ ...seen, fetched: fetched.splice(0), complaints: complaints.splice(0) }));
  };
  await page.goto(link);
  await look('first');
  for (const taken of steps) {
    const step = typeof taken === 'string' ? { press: taken } : taken;
    if (step.fill) {
      await page.getByLabel(step.fill[0]).fill(step.fill[1]);
    } else if (step.open) {
      await page.getByText(step.open, { exact: true }).click();
    } else {
      const words = step.link ?? step.press;
      const loaded = page.waitForEvent('load');
      await page.getByRole(step.link ? 'link' : 'button', { name: words }).click();
      await loaded;
      await look(words.replaceAll(/\W+/g, '-').toLowerCase());
    }
  }
} finally {
  await browser.close();
}
