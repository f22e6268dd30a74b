// RFC 8693 as a grant of oidc-provider: a token of an issuer that it trusts, for one of its own for the same person.
import { createRemoteJWKSet, jwtVerify } from 'jose';
import { errors } from 'oidc-provider';

const GRANT = 'urn:ietf:params:oauth:grant-type:token-exchange';
const TYPE = 'urn:ietf:params:oauth:token-type:';
const ACCESS_TOKEN = `${TYPE}access_token`;

// The client that may exchange.
export const client = {
  client_id: 'weir-exchange',
  client_secret: 'exchange secret: +&%',
  token_endpoint_auth_method: 'client_secret_basic',
  redirect_uris: [],
  response_types: [],
  grant_types: [GRANT],
};

// `trusts` is whose tokens are taken, its own if it is left out, if they were made for `audience` and are said to be of the
// type `takes`; `barred` are those who get nothing for them.
export function register(
  provider,
  { trusts = provider.issuer, audience, takes = 'access_token', barred },
  getResourceServerInfo,
) {
  let keys;
  const subject = async (token) => {
    const metadata = await fetch(`${trusts}/.well-known/openid-configuration`);
    keys ??= createRemoteJWKSet(new URL((await metadata.json()).jwks_uri));
    try {
      const { payload } = await jwtVerify(token, keys, { issuer: trusts, audience, requiredClaims: ['exp', 'sub'] });
      return payload.sub;
    } catch (error) {
      throw new errors.InvalidRequest(`the subject token is not accepted: ${error.code}`);
    }
  };
  const handler = async (ctx) => {
    const { subject_token, subject_token_type, resource, scope } = ctx.oidc.params;
    if (subject_token_type !== TYPE + takes) throw new errors.InvalidRequest('that type is not exchanged here');
    if (typeof resource !== 'string') throw new errors.InvalidTarget('for which resource?');
    const accountId = await subject(subject_token);
    if (barred.includes(accountId)) throw new errors.InvalidRequest('the subject token is not accepted');
    const token = new provider.AccessToken({ accountId, client: ctx.oidc.client, gty: 'token_exchange' });
    const server = getResourceServerInfo(ctx, resource, ctx.oidc.client);
    token.resourceServer = new provider.ResourceServer(resource, server);
    token.scope = (scope ?? '').split(' ').filter((one) => server.scope.split(' ').includes(one)).join(' ');
    ctx.oidc.entity('AccessToken', token);
    ctx.body = {
      access_token: await token.save(),
      issued_token_type: ACCESS_TOKEN,
      token_type: 'Bearer',
      expires_in: token.expiration,
      scope: token.scope,
    };
  };
  const parameters = ['subject_token', 'subject_token_type', 'requested_token_type', 'audience', 'resource', 'scope'];
  provider.registerGrantType(GRANT, handler, parameters);
}
