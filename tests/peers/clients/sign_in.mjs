// A client that finds out by itself how to sign in at a gateway: the SDK named first (`1` or `2`) reads the 401, the
// metadata of the resource and of its authorization server, registers and gets a token; this is the browser in between.
//
//   node sign_in.mjs 2 http://127.0.0.1:8080/mcp
//
// Prints {"audience": what its token is for, "tools": how many there are}. With `refresh` as the third argument it also
// uses its refresh token, and says whether it has other tokens then: {"refreshed": true}. What it asks for is `SCOPE`.
const [, , version, address, refresh] = process.argv;
const sdk =
  version === '1'
    ? {
        ...(await import('@modelcontextprotocol/sdk/client/index.js')),
        ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')),
        ...(await import('@modelcontextprotocol/sdk/client/auth.js')),
      }
    : await import('@modelcontextprotocol/client');

const redirect = 'http://127.0.0.1:3334/oauth/callback';
const kept = {};
let code;
const provider = {
  redirectUrl: redirect,
  clientMetadata: {
    client_name: 'weir-tests',
    redirect_uris: [redirect],
    grant_types: ['authorization_code', 'refresh_token'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
    application_type: 'native',
    // The peer gives no token without one.
    scope: process.env.SCOPE ?? 'mcp:read',
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  codeVerifier: () => kept.verifier,
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  redirectToAuthorization: async (page) => (code = await browse(page)),
};

/** Follows the authorization server's pages, which sign in by themselves, to the code. Allows what a page asks about. */
async function browse(page) {
  const cookies = {};
  let form;
  for (let at = new URL(page); ; ) {
    if (at.href.startsWith(redirect)) return at.searchParams;
    const cookie = Object.entries(cookies).map((pair) => pair.join('=')).join('; ');
    const sent = form && { method: 'POST', body: form };
    const answer = await fetch(at, { redirect: 'manual', headers: { cookie }, ...sent });
    form = undefined;
    for (const set of answer.headers.getSetCookie()) {
      const [name, value] = set.split(';')[0].split('=');
      cookies[name] = value;
    }
    const html = answer.status === 200 ? await answer.text() : '';
    if (html.includes('value="allow"')) {
      const fields = [...html.matchAll(/<input[^>]*name="(\w+)" value="([^"]*)"/g)];
      form = new URLSearchParams(fields.map(([, name, value]) => [name, value.replaceAll('&amp;', '&')]));
      form.set('decision', 'allow');
      at = new URL(at.pathname, at);
      continue;
    }
    if (answer.status < 300 || answer.status > 399) throw new Error(`${answer.status} at ${at.pathname}`);
    at = new URL(answer.headers.get('location'), at);
  }
}

const connect = async () => {
  const client = new sdk.Client({ name: 'weir-tests', version: '1' });
  const transport = new sdk.StreamableHTTPClientTransport(new URL(address), { authProvider: provider });
  try {
    await client.connect(transport);
  } catch (error) {
    if (code === undefined) throw error;
    await transport.finishAuth(version === '1' ? code.get('code') : code);
    return undefined;
  }
  return client;
};

const client = (await connect()) ?? (await connect());
const { tools } = await client.listTools();
const claims = JSON.parse(Buffer.from(kept.tokens.access_token.split('.')[1], 'base64url'));
const said = { audience: claims.aud, tools: tools.length };
if (refresh) {
  const before = kept.tokens;
  // The SDK refreshes whenever there is a refresh token, and opens no page then.
  code = undefined;
  await sdk.auth(provider, { serverUrl: address });
  const changed = (name) => kept.tokens[name] && kept.tokens[name] !== before[name];
  await client.listTools();
  said.refreshed = code === undefined && changed('access_token') && changed('refresh_token');
}
console.log(JSON.stringify(said));
await client.close();
