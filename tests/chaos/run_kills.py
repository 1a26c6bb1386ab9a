"""Kill the node at every place while programs call tools, and compare with what the tools did.

Goal: every run comes to the end it would have come to; what must not happen twice happened at most
once, as its record says; what may happen twice did so under one key.
Method: sessions of programs that pay and look, a tool process' own ledger, a successor for the
node, and an operator who looks into the ledger before he says what became of a call.

    python -m tests.chaos.run_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.chaos.digests import journaled
from tests.nodes import NodeProcess, NotReady, has_died, node_on, replace_node
from tests.stock_client import Stock, stock

__all__ = [
    "PROGRAMS",
    "RESULTS",
    "KillRecord",
    "faults",
    "kill_at",
    "operate",
]

SESSIONS = ("one", "two")
PROGRAMS = (
    "import asyncio\ntotal = 1\ntotal",
    "total += pay(2)\ntotal",
    "a, b = await asyncio.gather(look('tea'), look('cake'))\ntotal += a + b\ntotal",
    "try:\n    pay(-1)\nexcept Exception as refusal:\n    total += 100\ntotal",
    "x = await look('milk')\ntotal += pay(x) + pay(x + 1)\ntotal",
    "import random\ntotal += random.randrange(1)\ntotal",
)
RESULTS = (1, 5, 12, 112, 130, 130)

_realms = count(1)


class Done(NamedTuple):
    """A line of the ledger."""

    tool: str
    key: str
    result: int


class KillRecord(NamedTuple):
    """The results of the programs, and the effects of their calls."""

    results: dict[str, list[Any]]
    done: list[Done]
    recovered: list[str]
    """Operations an operator had to decide."""
    reads: frozenset[str]
    """Operations of reads that are on record."""
    killed: bool = False


PASSES = {
    "pulled": 7,
    "decided": 60,
    "effect_started": 40,
    **dict.fromkeys(("append_sent", "appended", "acked", "evolved", "replied"), 20),
    "facts_held": 24,
    "call_ended": 14,
    "outcome_passed": 14,
}
"""How often the runs pass each failpoint at least, however their commits meet."""


async def kill_at(server: EmbeddedServer, folder: Path, failpoint: str) -> KillRecord:
    """The programs on a node that dies at ``failpoint``, if any, and its successor."""
    realm, ledger = f"runs{next(_realms)}", folder / "ledger"
    ledger.touch()

    def node(**variables: str) -> NodeProcess:
        tools = ("--driver", "sandbox", "--tools", "tests.chaos.ledger_tools:registry")
        where = {"LEDGER": str(ledger), "PYTHONPATH": str(Path(__file__).parents[2])}
        return node_on(server, realm, folder, *tools, **where, **variables)

    mortal = node(ROOKERY_FAILPOINT=failpoint) if failpoint else node()
    successor = node()
    with closing(mortal), closing(successor):
        with suppress(NotReady):
            await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(replace_node(mortal, successor))
        try:
            async with stock(server, realm, Role.OPERATOR) as client:
                story = await _tell(client, server, realm, ledger)
            return story._replace(killed=bool(failpoint) and await has_died(mortal))
        finally:
            replacing.cancel()
            with suppress(asyncio.CancelledError):
                await replacing


async def _tell(client: Stock, server: EmbeddedServer, realm: str, ledger: Path) -> KillRecord:
    recovered: list[str] = []
    operator = asyncio.create_task(operate(client, ledger, recovered))
    results = {session: list[Any]() for session in SESSIONS}

    async def session(name: str) -> None:
        for number, code in enumerate(PROGRAMS):
            body = {"code": code, "timeout_ms": 60_000}
            answer = await client.ask("run", name, body, Nats_Msg_Id=f"{name}-{number}")
            while answer.body.get("status") == "interrupted":  # It waits for the operator.
                await asyncio.sleep(0.2)
                answer = await client.ask("run", name, body, Nats_Msg_Id=f"{name}-{number}")
            results[name].append(answer.body.get("result", answer.body))

    try:
        await asyncio.gather(*map(session, SESSIONS))
    finally:
        operator.cancel()
    journal = await journaled(server, realm)  # Which verifies it.
    reads = frozenset(one for one, name in journal.calls.items() if name == "look")
    lines = ledger.read_text(encoding="utf-8").splitlines()
    done = [Done(tool, key, int(result)) for tool, key, result in map(str.split, lines)]
    return KillRecord(results, done, recovered, reads)


async def operate(client: Stock, ledger: Path, recovered: list[str]) -> None:
    """Look into the ledger, and resolve the calls of unknown outcome."""
    subject, stream = f"rookery.{client.realm}.ev.turn.*", f"ROOKERY_{client.realm}_JOURNAL"
    found = await (await client.admin()).subscribe(subject, stream=stream, ordered_consumer=True)
    while True:
        with suppress(TimeoutError):
            message = await found.next_msg(timeout=1.0)
            for fact in _facts(message):
                if fact["type"] == "tool.recovery_required.v1":
                    recovered.append(fact["operation_id"])
                    await _resolve(client, ledger, fact)


async def _resolve(client: Stock, ledger: Path, fact: dict[str, Any]) -> None:
    operation = fact["operation_id"]
    lines = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    done = [int(result) for _, key, result in lines if key == operation]
    said = {"completed": done[0]} if done else {"retry": True}
    body = {"run_id": fact["run"], "operation_id": operation, **said}
    await client.ask("resolve", fact["session"], body, Nats_Msg_Id=f"resolve-{operation}")


def _facts(message: Any) -> list[dict[str, Any]]:
    facts: list[dict[str, Any]] = json.loads(message.data)
    return facts


def faults(story: KillRecord) -> list[str]:
    """What is wrong with a story."""
    found = [
        f"{session} came to {results}"
        for session, results in story.results.items()
        if tuple(results) != RESULTS
    ]
    paid = Counter(done.key for done in story.done if done.tool == "pay")
    found += [f"{key} was paid {times} times" for key, times in paid.items() if times > 1]
    if len(paid) != 3 * len(SESSIONS):
        found.append(f"{len(paid)} payments")
    # A read runs ahead of its record, and its key follows from its run's start: where the node dies
    # before that start is on record, the next one starts the run anew, and reads under other keys.
    looks = {done.key for done in story.done if done.tool == "look"}
    if len(story.reads) != 3 * len(SESSIONS) or not story.reads <= looks:
        found.append(f"{len(story.reads)} looks on record, {len(story.reads - looks)} never made")
    if len(looks) > len(story.reads) and not story.killed:
        found.append(f"{len(looks)} looks, although no node was killed")
    return found


async def campaign(asked: Campaign) -> None:
    with EmbeddedServer(asked.folder / "store", admin=True) as server:

        async def verdict(failpoint: str, folder: Path) -> Verdict:
            story = await kill_at(server, folder, failpoint)
            counts = f"{len(story.recovered)} asked, {len(story.done)} done"
            return Verdict(faults(story), counts, story.killed)

        await asked.judge(["", *places(PASSES, asked.options.times)], verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.run_kills", times=5), campaign))
