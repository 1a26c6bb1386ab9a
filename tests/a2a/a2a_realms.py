"""A realm with an agent, gateways as processes, and clients by the protocol's own words."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.ops.config import Config, load
from rookery.ops.server import ConfiguredServer
from rookery.schemas.peers.items import Responder
from tests.nodes import NodeProcess
from tests.ops.fixtures import ROOKERY, CommandLine

__all__ = [
    "PROGRAM",
    "TOKENS",
    "A2aRealm",
    "Gateway",
    "RpcError",
    "events",
    "message_of",
    "rpc",
    "state_of",
    "text_of",
]

TOKENS: Final = {"bob": "b" * 32, "ann": "a" * 32}
AGENT: Final = "coder"
PROGRAM: Final = """
body = item["body"] if item["kind"] == "message" else item["params"]
message = body["message"]
text = message["parts"][0]["text"]
await count(message["messageId"])

async def report(result):
    await send_response(
        item["peer_id"], item["id"], status="accepted", phase="partial_result", result=result
    )

if text.endswith("held"):
    await hold()
found = None
if text.startswith("steps"):
    for number in range(int(text.split()[1])):
        await report(f"step {number + 1}")
elif text == "receive":
    reply = await receive(in_reply_to=item["id"])
    text = reply["body"]["message"]["parts"][0]["text"]
elif text == "ask":
    found = {"input_required": "Which colour?"}
elif text == "pay":
    text = await pay("bob", 3)
found or "done " + text
"""
"""What the agent does follows from the text of a message; each run is counted outside."""
WALL_MS: Final = 230_000
"""A run waits for a gateway that starts on a busy machine."""
TOOLS = '''
import asyncio
from pathlib import Path
from rookery.actors import tool
from rookery.actors.tools import ToolRegistry

RUNS = Path(__file__).with_name("runs.txt")
RELEASED = Path(__file__).with_name("released")

@tool(side_effect="write", idempotent=False)
def count(task: str) -> None:
    """Count a run of a task, outside."""
    with RUNS.open("a") as runs:
        runs.write(f"{task}\\n")

@tool(side_effect="write", idempotent=False, approval_policy="manual")
def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"

@tool(side_effect="read", timeout_ms=200_000)
async def hold() -> None:
    """Wait until the test lets it go on."""
    while not RELEASED.exists():
        await asyncio.sleep(0.02)

registry = ToolRegistry.of(count, hold, pay)
'''


class A2aRealm(CommandLine):
    """One user's store with a node, whose session ``coder`` is an agent."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        (home / "agenttools.py").write_text(TOOLS)
        self.tokens = home / "tokens"
        self.tokens.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
        self.tokens.chmod(0o600)

    @property
    def config(self) -> Config:
        return load(environ=self.environment, directory=self.home).config

    @property
    def counted(self) -> list[str]:
        """The tasks whose runs were counted."""
        runs = self.home / "runs.txt"
        return runs.read_text().splitlines() if runs.exists() else []

    def release(self) -> None:
        """Let the tasks go on that are held."""
        (self.home / "released").touch()

    def client(self) -> Client:
        """To be opened."""
        server = ConfiguredServer(self.config).find(Role.OPERATOR)
        assert server is not None
        return server.client("default", 30.0)

    @contextmanager
    def agent(self, program: str, **terms: Any) -> Iterator[NodeProcess]:
        """A node whose session executes the program for each task."""
        with self.served("--peers", "--tools", "agenttools:registry") as node:
            asyncio.run(self.serve(AGENT, program, **terms))
            yield node

    async def serve(self, session: str, program: str, **terms: Any) -> None:
        async with self.client() as client:
            await client.create(session)
            responder = Responder(code=program, wall_ms=WALL_MS, **terms)
            await client.serve_peers(session, responder)

    @contextmanager
    def gateway(self, *sessions: str, port: int = 0) -> Iterator[Gateway]:
        """A gateway as a process of its own."""
        command = [*ROOKERY, "a2a", *(sessions or (AGENT,)), "--http", str(port), "--json"]
        with (self.home / "gateway.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, "--token-file", str(self.tokens), "--push-network", "127.0.0.0/8"],
                env=self.environment,
                cwd=self.home,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        with process:
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                assert ready, (self.home / "gateway.log").read_text()
                yield Gateway(str(json.loads(ready)["url"]), process)
            finally:
                process.kill()


class Gateway:
    """A running gateway."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url, self.process = url, process

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def http(self, client: str = "bob") -> httpx.AsyncClient:
        """To be opened; an HTTP client with the token of this client."""
        headers = {"Authorization": f"Bearer {TOKENS[client]}", "A2A-Version": "1.0"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=60.0)


async def rpc(http: httpx.AsyncClient, method: str, params: Any, agent: str = AGENT) -> Any:
    """The result of a JSON-RPC call; an ``RpcError`` with its code."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    answer = (await http.post(f"/{agent}", json=request)).json()
    if "error" in answer:
        raise RpcError(answer["error"]["code"], answer["error"]["message"])
    return answer["result"]


class RpcError(Exception):
    """What a JSON-RPC call was refused with."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code


def message_of(text: str, message_id: str, **fields: Any) -> dict[str, Any]:
    """A message of a user."""
    parts = [{"text": text}]
    return {"messageId": message_id, "role": "ROLE_USER", "parts": parts, **fields}


async def events(
    http: httpx.AsyncClient, method: str, params: Any, *, after: str = ""
) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
    """The events of a stream, each with its id."""
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {"Last-Event-ID": after} if after else {}
    async with http.stream("POST", f"/{AGENT}", json=request, headers=headers) as response:
        if response.headers["content-type"].startswith("application/json"):
            error = json.loads(await response.aread())["error"]
            raise RpcError(error["code"], error["message"])
        event_id = ""
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                event_id = value
            elif name == "data":
                answer = json.loads(value)
                if "error" in answer:
                    raise RpcError(answer["error"]["code"], answer["error"]["message"])
                yield event_id, answer["result"]


def state_of(event: dict[str, Any]) -> str:
    """The state in a task or an update of its status; empty for an artifact."""
    found = event.get("task") or event.get("statusUpdate") or {}
    return str(found.get("status", {}).get("state", "")).removeprefix("TASK_STATE_")


def text_of(artifact: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in artifact["parts"])
