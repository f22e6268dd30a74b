// A real browser with scripts switched off. Opens a link, presses one button after another, and after each says what
// somebody sees there, as a line of JSON.
//
// Its argument is JSON: the program, the link, the buttons by their words, the size of the window, the name under which
// an authorization server finds who sits there, and where pictures are put.
import { chromium } from 'playwright-core';

const { program, link, press, width, height, person, pictures } = JSON.parse(process.argv[2]);

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
  });
  await context.addCookies([{ name: 'person', value: person, url: new URL(link).origin }]);
  const page = await context.newPage();
  const fetched = [];
  const complaints = [];
  page.on('request', (request) => fetched.push(request.url()));
  page.on('console', (message) => complaints.push(message.text()));
  const look = async (name) => {
    await page.screenshot({ path: `${pictures}-${name}.png`, fullPage: true });
    const { innerText, scrollWidth } = await page.evaluate(() => ({
      innerText: document.body.innerText,
      scrollWidth: document.documentElement.scrollWidth,
    }));
    const seen = { url: page.url(), text: innerText, width: scrollWidth };
    console.log(JSON.stringify({ ...seen, fetched: fetched.splice(0), complaints: complaints.splice(0) }));
  };
  await page.goto(link);
  await look('first');
  for (const words of press) {
    const loaded = page.waitForEvent('load');
    await page.getByRole('button', { name: words }).click();
    await loaded;
    await look(words.replaceAll(/\W+/g, '-').toLowerCase());
  }
} finally {
  await browser.close();
}
