// oidc-provider as a process: `node oidc_provider.mjs NODE_MODULES [CERTIFICATE KEY]`.
//
// Each line on stdin is a list of key names, of which the first signs: the provider then has these keys. The answer to
// each is a line on stdout. Tokens and logins survive, as in a provider that rotates its keys.
import { createServer as createHttp } from 'node:http';
import { createServer as createHttps } from 'node:https';
import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const [modules, certificate, key] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${modules}/oidc-provider/lib/index.js`));

const TYPES = { rsa: ['rsa', { modulusLength: 2048 }], ec: ['ec', { namedCurve: 'P-256' }], ed: ['ed25519', {}] };
const ALGORITHMS = { rsa: 'RS256', ec: 'ES256', ed: 'EdDSA' };
const made = new Map();

/** The key of a name such as "rsa-1". */
function keyOf(name) {
  if (!made.has(name)) {
    const [type, options] = TYPES[name.split('-')[0]];
    const jwk = generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' });
    made.set(name, { ...jwk, kid: name, use: 'sig', alg: ALGORITHMS[name.split('-')[0]] });
  }
  return made.get(name);
}

function provider(issuer, names) {
  const alg = ALGORITHMS[names[0].split('-')[0]];
  const lifetime = Number(process.env.TOKEN_SECONDS ?? 600);
  return new Provider(issuer, {
    jwks: { keys: names.map(keyOf) },
    clients: [
      {
        client_id: 'cli', application_type: 'native', token_endpoint_auth_method: 'none',
        grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
        redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'], id_token_signed_response_alg: alg,
      },
      {
        client_id: 'console', application_type: 'native', token_endpoint_auth_method: 'none',
        grant_types: ['authorization_code', 'refresh_token'],
        redirect_uris: ['http://127.0.0.1/console/login/callback'], response_types: ['code'], id_token_signed_response_alg: alg,
      },
      ...['client_secret_basic', 'client_secret_post'].map((method) => ({
        client_id: `robot_${method}`, client_secret: 'a secret:with%signs', token_endpoint_auth_method: method,
        grant_types: ['client_credentials'], redirect_uris: [], response_types: [], id_token_signed_response_alg: alg,
      })),
    ],
    cookies: { keys: ['of a test'] },
    enabledJWA: { idTokenSigningAlgValues: ['RS256', 'ES256', 'EdDSA'] },
    scopes: ['openid', 'offline_access'],
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    extraTokenClaims: () => ({ groups: ['operators'] }),
    pkce: { required: () => true },
    features: {
      devInteractions: { enabled: true },
      deviceFlow: { enabled: true },
      clientCredentials: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          scope: 'infer', audience: resource, accessTokenFormat: 'jwt', accessTokenTTL: lifetime, jwt: { sign: { alg } },
        }),
      },
    },
    ttl: { AccessToken: lifetime, ClientCredentials: lifetime, IdToken: 600, Grant: 600, Interaction: 600, Session: 600, RefreshToken: 600, DeviceCode: 600 },
  }).callback();
}

let answer;
const listener = (request, response) => answer(request, response);
const server = certificate
  ? createHttps({ cert: readFileSync(certificate), key: readFileSync(key) }, listener)
  : createHttp(listener);
server.listen(0, '127.0.0.1', () => {
  const issuer = `${certificate ? 'https' : 'http'}://127.0.0.1:${server.address().port}`;
  answer = provider(issuer, ['rsa-1']);
  console.log(issuer);
  createInterface({ input: process.stdin })
    .on('line', (line) => {
      answer = provider(issuer, JSON.parse(line));
      console.log('rotated');
    })
    .on('close', () => process.exit(0));
});
