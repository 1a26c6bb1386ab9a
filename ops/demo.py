"""``make demo``: submits work, prints the facts as they arrive, and ends.

Everything on the client's side is a stock NATS client and JSON; nothing of ours is imported but the
node that serves. Until turns and the sandbox are here, an outside driver of twenty lines does what
they will do: it sees that a run is prepared, does the work, and says that it is over.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import nats

from rookery.bus.chain import ChainAudit
from rookery.bus.jetstream import JetStreamBus
from rookery.bus.ports import Filter
from rookery.ops.config import Config
from rookery.ops.logs import configure
from rookery.ops.node import Node

__all__ = ["main"]

SESSION = "demo"
PROGRAMS = ("1 + 1", "sorted('rookery')", "result = 6 * 7")
PATIENCE_S = 30.0


def main() -> int:
    """Run the demo; the exit code says whether every promise was kept."""
    configure("warning", "auto", sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rookery-demo-") as store:
        say("Starting a node with an embedded server ...")
        with Node(Config(store=str(Path(store)))) as node:
            say(f"ready {node.url}\n")
            return asyncio.run(asyncio.wait_for(tour(node.url), PATIENCE_S))


async def tour(url: str) -> int:
    """What a user would do from another terminal."""
    client = await nats.connect(url)
    await client.subscribe("rookery.default.ev.>", cb=show_facts)
    await client.subscribe(f"rookery.default.ev.session.{SESSION}", cb=Driver(client).see)
    say(f"Three runs, published as plain JSON to rookery.default.cmd.run.{SESSION}:")
    ends = await asyncio.gather(
        *(submit(client, f"demo-{n}", {"code": code}) for n, code in enumerate(PROGRAMS, 1))
    )
    for end in ends:
        say(f"  <- {end['run_id']} {end['state']}")
    say("\nThe first one once more, under the same message id: answered, not run again.")
    again = await submit(client, "demo-1", {"code": PROGRAMS[0]})
    say(f"  <- {again['run_id']} {again['state']}")
    await client.close()
    say("\nThe journal, read back and verified:")
    verified = await verify(url)
    say(f"  {verified} messages, every one continues the chain of its entity")
    kept = again == ends[0] and all(end["state"] == "committed" for end in ends)
    say("\nDone. Start a node of your own: rookery up" if kept else "\nA promise was broken.")
    return 0 if kept else 1


class Driver:
    """Stands where the turn machine will stand: works off what is prepared."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def see(self, message: Any) -> None:
        """A run that is prepared is ours to do."""
        for fact in msgspec.json.decode(message.data):
            if fact["type"] == "session.run_prepared.v1":
                done = {"input_id": fact["input_id"], "run_id": fact["run"]}
                await self._client.publish(
                    f"rookery.default.cmd.admission.{SESSION}",
                    msgspec.json.encode({"input": "commit", "params": done}),
                    headers={"Nats-Msg-Id": f"done-{fact['run']}"},
                )


async def submit(client: Any, message_id: str, request: dict[str, Any]) -> dict[str, Any]:
    """Publish a run and wait for the answer on a subject of our own."""
    reply_to = client.new_inbox()
    answers = await client.subscribe(reply_to)
    await client.publish(
        f"rookery.default.cmd.run.{SESSION}",
        msgspec.json.encode(request),
        headers={"Nats-Msg-Id": message_id, "Rookery-Reply": reply_to},
    )
    say(f"  -> {message_id}: {request['code']}")
    answer = await answers.next_msg(timeout=PATIENCE_S)
    await answers.unsubscribe()
    receipt: dict[str, Any] = msgspec.json.decode(answer.data)
    return receipt


async def show_facts(message: Any) -> None:
    """A line a fact, as any subscriber sees it."""
    for fact in msgspec.json.decode(message.data):
        say(f"     {fact['id']:<16} {fact['type']:<34} {fact.get('run', '')}")


async def verify(url: str) -> int:
    """Every message of the journal against its chain."""
    bus, audit, count = JetStreamBus(url), ChainAudit(), 0
    await bus.start()
    try:
        async for page in bus.journal.scan(Filter()):
            for stored in page:
                audit.add(stored)
                count += 1
    finally:
        await bus.stop()
    return count


def say(line: str) -> None:
    """Print now: a demo is watched."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
