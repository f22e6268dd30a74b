// A real authorization server: oidc-provider with all that the tests need switched on. Users sign in by themselves, as
// the cookie `person` says, or by a form.
//
// Settings come as JSON in the first argument: access and refresh lifetimes in seconds, the document that stands behind a
// client id that is a URL, more clients, whether clients may register, whether it says how people are called, whether it
// asks them who they are, whether it names itself to those who come back (`iss`, RFC 9207), whose tokens are exchanged, whether a refresh token that was used may be used again, the
// port, whether it binds tokens to keys (`dpop`: as a rule, `false`, or with a "nonce" in each proof), and how its access tokens look: `opaque`, for another `audience`, with more `claims`, with other `scopes`, with `scp`
// in place of `scope` (a "list", or the "short" name of one), what else ID tokens say of `people`, the one `resource` that
// it has tokens for, which nobody need name, and its `keys` (private JWKs, of which the first signs). All it knows is in memory: started again, it knows nobody. The first line it prints is {"issuer": …}. Lines on its
// standard input are commands, each answered with one line: `stats` is how often each grant was asked for, `secrets` every
// token that was given, `requests` all that was asked of it, `trouble {…}` what is to go wrong from now on (see
// trouble.js), `waiting` how many requests wait for that to end, `key` a new private key for `keys`.
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { once } from 'node:events';

import Provider, { errors } from 'oidc-provider';

import * as exchange from './exchange.js';
import * as trouble from './trouble.js';

const settings = {
  access: 3600,
  refresh: 86400,
  document: undefined,
  clients: [],
  registers: true,
  names: false,
  iss: true,
  asks: false,
  port: 0,
  ...JSON.parse(process.argv[2] ?? '{}'),
};

const http = createServer();
http.listen(settings.port, '127.0.0.1');
await once(http, 'listening');
const issuer = `http://127.0.0.1:${http.address().port}`;

const SCOPES = settings.scopes ?? 'mcp:read mcp:write mcp:admin mcp:audit mcp:owner';

const getResourceServerInfo = (_, resource) => {
  if (settings.resource && resource !== settings.resource) throw new errors.InvalidTarget();
  return {
    scope: SCOPES,
    audience: settings.audience ?? resource,
    accessTokenFormat: settings.opaque ? 'opaque' : 'jwt',
    accessTokenTTL: settings.access,
    jwt: { sign: { alg: 'RS256' } },
  };
};

// What ID tokens say beside the names.
const SAID = [...new Set(Object.values(settings.people ?? {}).flatMap(Object.keys))];

const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'weir-native',
      token_endpoint_auth_method: 'none',
      application_type: 'native',
      redirect_uris: ['http://127.0.0.1/oauth/callback'],
      grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
    },
    {
      client_id: 'weir-basic',
      client_secret: 'basic secret: +&%',
      token_endpoint_auth_method: 'client_secret_basic',
      redirect_uris: [],
      response_types: [],
      grant_types: ['client_credentials'],
    },
    {
      client_id: 'weir-post',
      client_secret: 'post secret: +&%',
      token_endpoint_auth_method: 'client_secret_post',
      redirect_uris: [],
      response_types: [],
      grant_types: ['client_credentials'],
    },
    ...(settings.exchange ? [exchange.client] : []),
    ...(settings.jwk
      ? [
          {
            client_id: 'weir-jwt',
            token_endpoint_auth_method: 'private_key_jwt',
            jwks: { keys: [settings.jwk] },
            redirect_uris: [],
            response_types: [],
            grant_types: ['client_credentials'],
          },
        ]
      : []),
    ...settings.clients,
  ],
  ...(settings.keys ? { jwks: { keys: settings.keys } } : {}),
  ...(settings.names
    ? { claims: { openid: ['sub', 'groups', ...SAID], email: ['email'], profile: ['name'] }, conformIdTokenClaims: false }
    : {}),
  scopes: ['openid', 'offline_access', ...SCOPES.split(' ')],
  pkce: { required: () => true },
  rotateRefreshToken: true,
  extraTokenClaims: () => settings.claims,
  formats: {
    customizers: {
      jwt: (_, __, { payload }) => {
        // A sign-in alone may ask for no scope of the resource.
        if (!settings.scp || payload.scope === undefined) return;
        payload.scp = settings.scp === 'list' ? payload.scope.split(' ') : payload.scope.split('/').pop();
        delete payload.scope;
      },
    },
  },
  ttl: {
    AccessToken: settings.access,
    ClientCredentials: settings.access,
    RefreshToken: settings.refresh,
    DeviceCode: 60,
    Grant: 86400,
    Session: 3600,
    Interaction: 600,
  },
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    registration: { enabled: settings.registers },
    revocation: { enabled: true },
    dPoP: {
      enabled: settings.dpop !== false,
      nonceSecret: Buffer.alloc(32, 'n'),
      requireNonce: () => settings.dpop === 'nonce',
    },
    introspection: { enabled: true },
    clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      ...(settings.resource ? { defaultResource: () => settings.resource } : {}),
      getResourceServerInfo,
    },
  },
  // Metadata documents of clients: nothing is fetched from anywhere.
  fetch: async (url) =>
    settings.document && String(url) === settings.document.client_id
      ? new Response(JSON.stringify(settings.document), { headers: { 'content-type': 'application/json' } })
      : new Response('', { status: 404 }),
  issueRefreshToken: (_, client, code) =>
    client.grantTypeAllowed('refresh_token') && code.scopes.has('offline_access'),
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({
      sub: id,
      name: `${id} of Tests`,
      email: `${id}@example.com`,
      groups: settings.groups?.[id],
      ...settings.people?.[id],
    }),
  }),
  interactions: { url: (_, interaction) => `/sign-in/${interaction.uid}` },
});

if (settings.exchange) exchange.register(provider, { barred: [], ...settings.exchange }, getResourceServerInfo);
// Some servers let a client that has not heard the answer ask again.
if (settings.forgiving) provider.RefreshToken.prototype.consume = async () => {};

const FORM = `<!doctype html><meta name="viewport" content="width=device-width"><title>Who are you?</title>
<form method="post"><label>Name <input name="person" value="" autofocus></label> <button>Continue</button></form>`;

// Who somebody is; undefined if that has to be asked first.
async function person(request) {
  if (!settings.asks) return /(?:^|; )person=([^;]*)/.exec(request.headers.cookie ?? '')?.[1] ?? 'alice';
  if (request.method !== 'POST') return undefined;
  let body = '';
  for await (const part of request) body += part;
  return new URLSearchParams(body).get('person') ?? undefined;
}

// Whoever comes agrees to everything.
async function signIn(request, response) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === 'login') {
    const accountId = await person(request);
    if (accountId === undefined) return response.writeHead(200, { 'content-type': 'text/html' }).end(FORM);
    // Somebody who wants to be nobody does not want to sign in.
    const result = accountId === 'nobody' ? { error: 'access_denied' } : { login: { accountId } };
    return provider.interactionFinished(request, response, result);
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
  for (const [resource, scopes] of Object.entries(missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(' '));
  }
  const consent = { grantId: await grant.save() };
  return provider.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

const asked = {};
const secrets = new Set();
const count = (name) => (asked[name] = (asked[name] ?? 0) + 1);
provider.on('grant.success', (ctx) => {
  count(ctx.oidc.params.grant_type);
  for (const name of ['access_token', 'refresh_token', 'id_token']) {
    if (ctx.body[name]) secrets.add(ctx.body[name]);
  }
});
provider.on('grant.error', (ctx) => count(`${ctx.oidc.params?.grant_type} refused`));
if (!settings.iss) {
  provider.on('authorization.success', (_, back) => delete back.iss);
  provider.on('authorization.error', (_, back) => delete back.iss);
  provider.use(async (ctx, next) => {
    await next();
    if (ctx.path.startsWith('/.well-known/')) delete ctx.body?.authorization_response_iss_parameter_supported;
  });
}
provider.on('server_error', (_, error) => console.error(error));

// What nobody else may see of what is sent to it.
const SECRETS = ['code', 'code_verifier', 'device_code', 'refresh_token', 'token', 'subject_token'].concat(
  ['client_secret', 'client_assertion'],
);
const requests = [];
const seen = new WeakMap();
provider.use(async (ctx, next) => {
  await next();
  // As they were sent, once they have been read.
  const { body } = ctx.oidc ?? {};
  if (body) seen.get(ctx.req).body = body;
  for (const name of SECRETS) if (body?.[name]) secrets.add(body[name]);
});

const handle = provider.callback();
http.on('request', (request, response) => {
  const { pathname, searchParams } = new URL(request.url, issuer);
  const record = { method: request.method, path: pathname, query: Object.fromEntries(searchParams) };
  record.authorization = request.headers.authorization?.split(' ')[0];
  record.agent = request.headers['user-agent'];
  seen.set(request, record);
  requests.push(record);
  response.on('finish', () => (record.status = response.statusCode));
  const go = () => {
    if (pathname.startsWith('/sign-in/')) {
      signIn(request, response).catch((error) => {
        console.error(error);
        response.writeHead(500).end();
      });
    } else {
      handle(request, response);
    }
  };
  if (!trouble.meet(pathname, response, go)) go();
});

const newKey = () => {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), use: 'sig', kid: randomUUID() };
};

console.log(JSON.stringify({ issuer }));
const lines = createInterface({ input: process.stdin });
lines.on('line', (line) => {
  const [command] = line.split(' ', 1);
  const answers = {
    stats: () => asked,
    secrets: () => [...secrets],
    requests: () => requests,
    waiting: trouble.waiting,
    key: newKey,
    trouble: () => trouble.make(JSON.parse(line.slice(command.length))) ?? true,
  };
  console.log(JSON.stringify(answers[command]()));
});
// Whoever started it has gone.
lines.on('close', () => process.exit(0));
