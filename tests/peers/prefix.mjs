// A reverse proxy that serves another server under a path of its own: node prefix.mjs http://127.0.0.1:PORT /prefix
import { createServer, request } from 'node:http';
import { pass } from './pass.mjs';

const [origin, prefix] = process.argv.slice(2);

const proxy = createServer((asked, answer) => {
  if (!asked.url.startsWith(`${prefix}/`)) {
    answer.writeHead(404).end('not below the prefix');
    return;
  }
  const headers = { ...asked.headers, host: new URL(origin).host };
  const passed = request(new URL(origin + asked.url.slice(prefix.length)), { method: asked.method, headers });
  pass(asked, passed, answer);
});

proxy.listen(0, '127.0.0.1', () => console.log(`listening on ${proxy.address().port}`));
