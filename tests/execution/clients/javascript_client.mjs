// A client of a realm in JavaScript: the official NATS client, JSON and the subjects, nothing of ours.
//
//   node javascript_client.mjs '{"server", "user", "pass", "realm", "session", "door", "body"}'
//
// `rookery auth url` prints user and password. Prints {"answer", "live"}: the run's result, and the
// facts as they were seen while it went.

import { headers } from "@nats-io/nats-core";
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const PATIENCE_MS = 45_000;
const LAST = "turn.completed.v1";
const { server, user, pass, realm, session, door, body } = JSON.parse(process.argv[2]);

const inboxPrefix = `_INBOX.${user}`;
const connection = await connect({ servers: server, user, pass, inboxPrefix });
const live = collect(connection.subscribe(`rookery.${realm}.ev.*.${session}`), (m) => m.json());
await connection.flush();
const answer = await { inbox, request }[door]();
console.log(JSON.stringify({ answer, live: await live }));
await connection.close();

async function request() {
  const subject = `rookery.${realm}.api.run.${session}`;
  const told = await connection.request(subject, JSON.stringify(body), { timeout: PATIENCE_MS });
  return told.json();
}

async function inbox() {
  const reply = `${inboxPrefix}.${session}`;
  const answers = connection.subscribe(reply, { max: 1 });
  const said = headers();
  said.set("Rookery-Reply", reply);
  const request = [`rookery.${realm}.cmd.run.${session}`, JSON.stringify(body)];
  await jetstream(connection).publish(...request, { headers: said, msgID: `by-${session}` });
  for await (const told of answers) return told.json();
}

async function collect(messages, decode) {
  const facts = [];
  for await (const message of messages) {
    facts.push(...decode(message));
    if (facts.at(-1).type === LAST) return facts;
  }
}
