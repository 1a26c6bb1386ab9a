// An agent on the server of the official JavaScript SDK, with a card that the SDK signs: it prints
// its URL and answers each message with an artifact.

import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import {
  AGENT_CARD_PATH,
  AgentCard,
  generateAgentCardSignature,
  TaskState,
} from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from "@a2a-js/sdk/server";
import { agentCardHandler, jsonRpcHandler, UserBuilder } from "@a2a-js/sdk/server/express";
import express from "express";

const part = (value) => ({
  content: { $case: "text", value },
  mediaType: "text/plain",
  filename: "",
  metadata: {},
});

const executor = {
  async execute({ taskId, contextId, userMessage }, bus) {
    const text = userMessage.parts.map((one) => one.content.value).join("");
    const status = (state) => ({ state, timestamp: new Date().toISOString() });
    const task = { id: taskId, contextId, artifacts: [], history: [userMessage], metadata: {} };
    bus.publish(AgentEvent.task({ ...task, status: status(TaskState.TASK_STATE_SUBMITTED) }));
    const artifact = {
      artifactId: "a",
      name: "",
      description: "",
      parts: [part(`cloudy: ${text}`)],
      metadata: {},
      extensions: [],
    };
    const of = { taskId, contextId, metadata: {} };
    bus.publish(AgentEvent.artifactUpdate({ ...of, artifact, append: false, lastChunk: true }));
    bus.publish(AgentEvent.statusUpdate({ ...of, status: status(TaskState.TASK_STATE_COMPLETED) }));
    bus.finished();
  },
  async cancelTask() {},
};

const app = express();
const server = createServer(app);
server.listen(0, "127.0.0.1", async () => {
  const url = `http://127.0.0.1:${server.address().port}`;
  const { publicKey, privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const sign = generateAgentCardSignature(privateKey, {
    alg: "ES256",
    kid: "k1",
    typ: "JOSE",
    jku: `${url}/keys`,
  });
  const card = await sign(
    AgentCard.fromJSON({
      name: "Weather in JavaScript",
      description: "Says what the weather is.",
      version: "1",
      supportedInterfaces: [{ url, protocolBinding: "JSONRPC", protocolVersion: "1.0" }],
      capabilities: { streaming: true, pushNotifications: false },
      defaultInputModes: ["text/plain"],
      defaultOutputModes: ["text/plain"],
      skills: [{ id: "ask", name: "ask", description: "Asks.", tags: ["weather"] }],
    }),
  );
  const handler = new DefaultRequestHandler(card, new InMemoryTaskStore(), executor);
  const key = { ...publicKey.export({ format: "jwk" }), kid: "k1" };
  app.get("/keys", (_, response) => response.json({ keys: [key] }));
  app.use(`/${AGENT_CARD_PATH}`, agentCardHandler({ agentCardProvider: handler }));
  const userBuilder = UserBuilder.noAuthentication;
  app.use("/", jsonRpcHandler({ requestHandler: handler, userBuilder }));
  console.log(url);
});
