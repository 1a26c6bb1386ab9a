"""The least a durable runtime on JetStream could cost: a request answered after K appends.

With a role of ``server`` this is the responder, with ``client`` its client, with ``publisher`` one
that publishes with an ack. All are nats-py, unmodified.
"""

from __future__ import annotations

import asyncio
from typing import Any

import nats
from lanes import config, serve, tasks
from nats.js.api import StorageType, StreamConfig

__all__ = ["main"]

_CONFIG = config()
_BODY = b"x" * 600
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_connections: list[Any] = []


async def connect() -> tuple[Any, Any]:
    """A client, and its JetStream context with the stream."""
    client = await nats.connect(_CONFIG["url"])
    stream = client.jetstream()
    await stream.add_stream(
        StreamConfig(name="LEAST", subjects=["least.>"], storage=StorageType.FILE)
    )
    return client, stream


async def respond() -> None:
    client, stream = await connect()
    last: dict[str, int] = {}
    answers: set[asyncio.Task[None]] = set()

    async def answer(message: Any) -> None:
        _, appends, key = message.subject.split(".")
        for _ in range(int(appends)):
            headers = {_EXPECTED: str(last.get(key, 0))}
            last[key] = (await stream.publish(f"least.{key}", _BODY, headers=headers)).seq
        await message.respond(b"{}")

    async def receive(message: Any) -> None:
        answers.add(begun := asyncio.create_task(answer(message)))
        begun.add_done_callback(answers.discard)

    await client.subscribe("ask.>", cb=receive)
    print('{"ready": true}', flush=True)
    await asyncio.Event().wait()


async def publish(lane: int, number: int) -> None:
    if not _connections:
        _connections.append((await connect())[1])
    await _connections[0].publish(f"least.p{lane}", _BODY)


def ask(appends: int) -> Any:
    async def once(lane: int, number: int) -> None:
        if not _connections:
            _connections.append(await nats.connect(_CONFIG["url"]))
        await _connections[0].request(f"ask.{appends}.{appends}-{lane}", b"{}", timeout=10)

    return tasks(once)


def main() -> None:
    if _CONFIG["role"] == "server":
        asyncio.run(respond())
    elif _CONFIG["role"] == "publisher":
        serve({"A": tasks(publish)})
    else:
        serve({"A": ask(1), "B": ask(11)})


if __name__ == "__main__":
    main()
