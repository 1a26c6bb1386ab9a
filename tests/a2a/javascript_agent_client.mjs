// The official JavaScript client: verifies the card, sends, streams and reads a task.
// node javascript_agent_client.mjs URL TOKEN; prints a line of JSON.
import { verifyAgentCardSignature, SendMessageRequest, taskStateToJSON } from "@a2a-js/sdk";
import {
  ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver,
  JsonRpcTransportFactory, RestTransportFactory,
} from "@a2a-js/sdk/client";

const [url, token] = process.argv.slice(2);
const withToken = (input, init = {}) => {
  const headers = new Headers(init.headers);
  headers.set("Authorization", `Bearer ${token}`);
  return fetch(input, { ...init, headers });
};
const card = await new DefaultAgentCardResolver({}).resolve(`${url}/coder/`);
const seen = { name: card.name, results: [] };
// The card as it was served: of one in memory the SDK loses the security schemes.
await verifyAgentCardSignature(async (kid, jku) => {
  const { keys } = await (await fetch(jku)).json();
  return keys.find((key) => key.kid === kid);
})(await (await fetch(`${url}/coder/.well-known/agent-card.json`)).json());

for (const name of ["JSONRPC", "HTTP+JSON"]) {
  const factory = new ClientFactory(ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
    transports: [
      new JsonRpcTransportFactory({ fetchImpl: withToken }),
      new RestTransportFactory({ fetchImpl: withToken }),
    ],
    preferredTransports: [name],
  }));
  const client = await factory.createFromAgentCard(card);
  const request = (id) => SendMessageRequest.fromJSON({
    message: { messageId: `js-${name}-${id}`, role: "ROLE_USER", parts: [{ text: "steps 2" }] },
  });
  const states = [];
  for await (const { payload } of client.sendMessageStream(request("stream"))) {
    const state = payload.value.status?.state;
    if (state !== undefined) states.push(taskStateToJSON(state));
  }
  const task = await client.sendMessage(request("send"));
  const again = await client.getTask({ id: task.id, tenant: "" });
  seen.results.push({
    name, states, artifacts: again.artifacts.length, state: taskStateToJSON(again.status.state),
  });
}
console.log(JSON.stringify(seen));
