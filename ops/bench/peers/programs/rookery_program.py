"""The client of Rookery in the comparison: a plain NATS client, as users of any language write it.

Parking and resuming use the public Python client. The E part runs the sandbox in this process, or
with ``"kind": "pipes"`` bare Python over pipes.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import nats
from lanes import config, serve, tasks, timed

from rookery.actors.sandbox import open_sandbox
from rookery.bus.client import Client
from rookery.ops.bench.loads.sandbox_load import BenchSession
from rookery.ops.bench.loads.sandbox_peers import bare_python
from rookery.schemas.codec import fact_tag
from rookery.schemas.facts import turn
from rookery.schemas.run import Language, RunRequest

__all__ = ["main"]

_CONFIG = config()
_TEN = "x = 0\nfor i in range(10):\n    x = same_quick(i)\nx"
_WAITING = RunRequest(code="weighed(2)", timeout_ms=600_000)
_PATIENCE_S = 300
_connections: list[Any] = []


async def connection() -> Any:
    if not _connections:
        _connections.append(await nats.connect(_CONFIG["url"], inbox_prefix=_CONFIG["inbox"]))
    return _connections[0]


def run(code: str, prefix: str, expected: int) -> Any:
    body = json.dumps({"code": code, "timeout_ms": 60_000}).encode()

    async def once(lane: int, number: int) -> None:
        subject = f"rookery.default.api.run.{prefix}{lane}"
        answer = json.loads((await (await connection()).request(subject, body, timeout=90)).data)
        assert answer.get("result") == expected, answer

    return tasks(once)


async def park(request: Any) -> Any:
    """Submit the runs, and return when each is parked."""
    async with Client(_CONFIG["url"]) as client:
        waiting = {f"w{number}" for number in range(request["count"])}
        sequence = await client.journal.end()

        async def submit(lane: int, number: int) -> None:
            await client.submit(f"w{number}", _WAITING)

        async def listen() -> None:
            async for fact in client.events("turn", after=sequence):
                if fact["type"] == fact_tag(turn.Parked):
                    waiting.discard(fact["session"])
                if not waiting:
                    return

        listening = asyncio.create_task(listen())
        await tasks(submit)({**request, "window": 16, "seconds_max": _PATIENCE_S})
        await asyncio.wait_for(listening, _PATIENCE_S)
        return {}


async def resume(request: Any) -> Any:
    """Approve every call, and return when each run has ended, as the feed says."""
    async with Client(_CONFIG["url"]) as client:
        ends_s: dict[str, float] = {}
        sequence = await client.journal.end()

        async def listen() -> None:
            async for fact in client.events("turn", after=sequence):
                if fact["type"] == fact_tag(turn.Completed):
                    assert fact["result"]["result"] == 2, fact
                    ends_s[fact["session"]] = perf_counter()
                if len(ends_s) == request["count"]:
                    return

        async def wake(lane: int, number: int) -> None:
            approval, *_ = await client.approvals(f"w{number}")
            await client.decide(approval, "approved", actor="bench")

        listening = asyncio.create_task(listen())
        await tasks(wake)({**request, "window": 64, "seconds_max": _PATIENCE_S})
        await asyncio.wait_for(listening, _PATIENCE_S)
        return {"ends_s": list(ends_s.values())}


def call(request: Any) -> Any:
    """Run the program of 1,000 host calls, ``count`` times after a first."""
    with ExitStack() as stack:
        peer: Any
        if _CONFIG["kind"] == "pipes":
            peer = stack.enter_context(bare_python())
        else:
            sandbox = stack.enter_context(open_sandbox(key=b"bench"))
            peer = BenchSession(sandbox, "calls", Language(_CONFIG["kind"]))
        taken_s = []
        for _ in range(request["count"] + 1):
            begun_s = perf_counter()
            peer.run(_CONFIG["code"])
            taken_s.append(perf_counter() - begun_s)
    return timed(taken_s[1:], sum(taken_s))


def main() -> None:
    serve(
        {"A": run("1+1", "a", 2), "B": run(_TEN, "b", 9), "park": park, "resume": resume, "E": call}
    )


if __name__ == "__main__":
    main()
