"""A tool worker without our code: nats-py, JSON, and what ``bus/workers/protocol.py`` says.

``python foreign_worker.py URL REALM`` serves the surface ``foreign`` until it is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from urllib.parse import urlsplit

import nats

TOOLS = {
    "shout": {"type": "string"},
    "lie": {"type": "integer"},
    "fail": {},
    "headers": {"type": "object"},
}
ARGUMENTS = {"type": "array", "items": {"type": "string"}}


def capability(name: str, output: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "description": "not ours",
        "input_schema": ARGUMENTS,
        "output_schema": output,
    }


def act(tool: str, asked: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
    match tool:
        case "shout":
            return {"value": asked["args"][0].upper()}
        case "lie":
            return {"value": "no number"}
        case "headers":
            return {"value": headers}
        case _:
            return {"error": {"code": "OUT_OF_TEA", "message": "come back tomorrow"}}


async def serve(url: str, realm: str) -> None:
    client = await nats.connect(
        url,
        max_reconnect_attempts=-1,
        reconnect_time_wait=0.1,
        inbox_prefix=f"_INBOX.{urlsplit(url).username}",
    )

    async def called(message: Any) -> None:
        tool = message.subject.rpartition(".")[2]
        answer = act(tool, json.loads(message.data), dict(message.headers or {}))
        await message.respond(json.dumps(answer).encode())

    async def asked(message: Any) -> None:
        tools = [{"capability": capability(*tool)} for tool in TOOLS.items()]
        await message.respond(json.dumps({"worker": "foreign-1", "tools": tools}).encode())

    for tool in TOOLS:
        await client.subscribe(f"rookery.{realm}.tool.foreign.{tool}", "rookery", called)
    await client.subscribe(f"rookery.{realm}.crew.foreign.catalogue", cb=asked)
    await client.flush()
    print('{"ready": true}', flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
