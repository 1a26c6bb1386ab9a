// A real authorization server (npm's oidc-provider) with three clients, which counts the requests
// to its token endpoint. `POST /_faults` has the next answers of that endpoint spoiled, `GET
// /_counts` says how many requests came, by grant. It prints its address and serves until its
// standard input ends.
import { createServer } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import Provider from 'oidc-provider';

const options = JSON.parse(process.argv[2] ?? '{}');
const counts = {};
let faults = [];

const server = createServer();
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const issuer = `http://127.0.0.1:${server.address().port}`;

const login = { response_types: [], token_endpoint_auth_method: 'none', application_type: 'native' };
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: 'machine', client_secret: options.secret, grant_types: ['client_credentials'],
      response_types: [], redirect_uris: [],
    },
    {
      client_id: 'poster', client_secret: options.secret, grant_types: ['client_credentials'],
      response_types: [], redirect_uris: [], token_endpoint_auth_method: 'client_secret_post',
    },
    {
      ...login, client_id: 'browser', grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'], redirect_uris: ['http://127.0.0.1/callback'],
    },
    {
      ...login, client_id: 'device', redirect_uris: [],
      grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token'],
    },
  ],
  features: { clientCredentials: { enabled: true }, deviceFlow: { enabled: true } },
  scopes: ['openid', 'offline_access', 'api'],
  cookies: { keys: ['for tests'] },
  rotateRefreshToken: true,
  ttl: {
    AccessToken: options.ttl ?? 600, ClientCredentials: options.ttl ?? 600, AuthorizationCode: 60,
    DeviceCode: 600, Grant: 86400, IdToken: 600, Interaction: 600, RefreshToken: 86400,
    Session: 86400,
  },
});

provider.use(async (ctx, next) => {
  if (ctx.path !== '/token') return next();
  const fault = faults.shift() ?? {};
  if (!fault.unread) await next();
  const grant = ctx.oidc?.params?.grant_type ?? 'unread';
  counts[grant] = (counts[grant] ?? 0) + 1;
  if (fault.delay_ms) await sleep(fault.delay_ms);
  if (fault.cut) {
    ctx.respond = false;
    ctx.req.socket.destroy();
  } else if (fault.body !== undefined) {
    ctx.status = fault.status ?? 200;
    ctx.set(fault.headers ?? {});
    ctx.type = 'application/json';
    ctx.body = fault.body;
  }
});
provider.on('server_error', (_, error) => console.error(error));

const handle = provider.callback();
server.on('request', async (request, response) => {
  if (request.url === '/_counts') {
    response.end(JSON.stringify(counts));
  } else if (request.url === '/_faults') {
    let text = '';
    for await (const piece of request) text += piece;
    faults = JSON.parse(text);
    response.end();
  } else {
    handle(request, response);
  }
});

console.log(issuer);
process.stdin.on('end', () => process.exit());
process.stdin.resume();
