// A forward proxy that takes every host for one server on this machine, and lets `user:hunter2` in:
// node forward_proxy.mjs PORT
import { createServer, request } from 'node:http';
import { connect } from 'node:net';
import { pass } from './pass.mjs';

const port = Number(process.argv[2]);
const wanted = `Basic ${Buffer.from('user:hunter2').toString('base64')}`;

const proxy = createServer((asked, answer) => {
  console.log(`${asked.method} ${asked.url}`);
  const { 'proxy-authorization': proof, ...headers } = asked.headers;
  if (proof !== wanted) {
    answer.writeHead(407, { 'proxy-authenticate': 'Basic' }).end();
    return;
  }
  const { pathname, search } = new URL(asked.url);
  const options = { host: '127.0.0.1', port, path: pathname + search, method: asked.method };
  const passed = request({ ...options, headers: { ...headers, host: `127.0.0.1:${port}` } });
  pass(asked, passed, answer);
});

proxy.on('connect', (asked, client, head) => {
  console.log(`CONNECT ${asked.url}`);
  if (asked.headers['proxy-authorization'] !== wanted) {
    client.end('HTTP/1.1 407 Proxy Authentication Required\r\n\r\n');
    return;
  }
  const server = connect(port, '127.0.0.1', () => {
    client.write('HTTP/1.1 200 Connection Established\r\n\r\n');
    server.write(head);
    server.pipe(client).pipe(server);
  });
  server.on('error', () => client.destroy());
  client.on('error', () => server.destroy());
});

proxy.listen(0, '127.0.0.1', () => console.log(`listening on ${proxy.address().port}`));
