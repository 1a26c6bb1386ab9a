// A peer with a key of its own, in JavaScript: the official NATS client and Web Crypto, nothing of
// ours. It asks a session, answers what the session asks meanwhile, and prints the response.
//
//   node client.mjs '{"server", "user", "pass", "realm", "realmKey", "name", "key", "to", "intent", "params"}'
//
// `key` is an Ed25519 private key as PEM (openssl genpkey -algorithm ed25519), `realmKey` what
// `rookery peers card --json` prints as `key`, user and password those of a credential of the role
// `peer` that is called as the client is: `rookery auth create NAME --role peer`.

import { headers } from "@nats-io/nats-core";
import { connect } from "@nats-io/transport-node";

const { subtle } = globalThis.crypto;
const ED25519 = { name: "Ed25519" };
const LIFE_MS = 600_000;
const { server, user, pass, realm, realmKey, name, key, to, intent, params } = JSON.parse(process.argv[2]);

const bytes = (text) => new TextEncoder().encode(text);
const hex = (buffer) => Buffer.from(buffer).toString("hex");
const pkcs8 = Buffer.from(key.replace(/-----[^-]+-----|\s/g, ""), "base64");
const privateKey = await subtle.importKey("pkcs8", pkcs8, ED25519, true, ["sign"]);
const { x } = await subtle.exportKey("jwk", privateKey);
const publicKey = hex(Buffer.from(x, "base64url"));

const connection = await connect({ servers: server, user, pass, inboxPrefix: `_INBOX.${user}` });
const envelopes = connection.subscribe(`rookery.${realm}.peer.${name}`);
await connection.flush();
let number = Date.now(); // Counts what this key sends, and goes on after a restart.
const asked = await send(to, { kind: "request", intent, params, due_at_ms: Date.now() + LIFE_MS });
for await (const message of envelopes) {
  const envelope = await verified(message);
  if (envelope.kind === "request") {
    const result = { by: name, seen: envelope.params };
    await send(envelope.from, { kind: "response", in_reply_to: envelope.id, status: "completed", result });
  } else if (envelope.in_reply_to === asked && envelope.status !== "accepted") {
    console.log(JSON.stringify({ status: envelope.status, result: envelope.result, error: envelope.error }));
    break;
  }
}
await connection.close();

// Sign the bytes of an envelope as they travel, and publish them durably; returns its id.
async function send(session, members) {
  const id = crypto.randomUUID();
  const at_ms = Date.now();
  const from = { from: name, from_key: publicKey, to: session, to_realm_key: realmKey, n: number++ };
  const body = JSON.stringify({ v: 1, id, ...from, at_ms, expires_at_ms: at_ms + LIFE_MS, ...members });
  const signature = await subtle.sign(ED25519, privateKey, bytes(`rookery.envelope.v1\n${body}`));
  const head = headers();
  head.set("Nats-Msg-Id", id);
  head.set("Rookery-Signature", hex(signature));
  connection.publish(`rookery.${realm}.cmd.envelope.${session}`, body, { headers: head });
  return id;
}

// The envelope of a session, for whose key its realm vouches.
async function verified(message) {
  const [encoded, word] = message.headers.get("Rookery-Vouch").split(".");
  const vouch = Buffer.from(encoded, "base64url");
  await check(realmKey, Buffer.concat([bytes("rookery.peer.vouch.v1\n"), vouch]), word);
  const envelope = JSON.parse(message.string());
  const { name: sender, key: senderKey, expires_at_ms } = JSON.parse(vouch.toString());
  if (sender !== envelope.from || senderKey !== envelope.from_key) throw new Error("another key");
  if (Date.now() >= expires_at_ms || envelope.to_realm_key !== publicKey) throw new Error("not for us");
  const text = Buffer.concat([bytes("rookery.envelope.v1\n"), message.data]);
  await check(senderKey, text, message.headers.get("Rookery-Signature"));
  return envelope;
}

async function check(signer, text, signature) {
  const imported = await subtle.importKey("raw", Buffer.from(signer, "hex"), ED25519, false, ["verify"]);
  if (!(await subtle.verify(ED25519, imported, Buffer.from(signature, "hex"), text)))
    throw new Error("the signature does not match");
}
