"""The recorded history: the journal that a real node left of two sessions, which every later
version must read.

The journal is an export of ``rookery journal export``, the blobs are beside it. If the contract
changes, ``python -m tests.execution.golden`` records it again, with a node and tools.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import PARTITIONS, AppendOutcome, AppendRequest, Filter
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from tests.nodes import access_to, node_on, rookery_here
from tests.stock_client import stock

__all__ = ["FOLDER", "JOURNAL", "Change", "recorded", "recorded_facts"]

FOLDER = Path(__file__).parents[1] / "golden" / "history"
JOURNAL, BLOBS = FOLDER / "journal.jsonl", FOLDER / "blobs.json"
REALM = "golden"

Fields = dict[str, Any]
Change = Callable[[Fields], None]
"""How a test changes a fact."""

PROGRAMS = {
    "ledger": [
        ("python", "import asyncio, random, time\nbooked = []\nbooked.append(echo(2))"),
        (
            "python",
            "print('three at once')\n"
            "got = await asyncio.gather(*(echo_soon(n) for n in range(3)))\n"
            "booked.append(echo(sum(got)))\nbooked",
        ),
        (
            "python",
            "try:\n    fail('NO_FUNDS')\nexcept Exception as refusal:\n"
            "    booked.append(str(refusal))\nbooked",
        ),
        ("python", "booked.append('kept')\nfail('NO_FUNDS')"),
        ("python", "booked.append('kept, too')\n1 / 0"),
        ("python", "while True: pass"),
        ("python", "[booked, random.random(), time.time()]"),
    ],
    "script": [
        ("typescript", "const seen: number[] = [];"),
        ("typescript", "seen.push(echo(20)); seen.push(await echo_soon(22)); seen"),
        ("typescript", "seen.reduce((a, b) => a + b, Math.floor(Math.random()))"),
    ],
}


def recorded_facts() -> Iterator[tuple[int, Fields]]:
    """Every fact, with its sequence."""
    for line in _lines():
        for fact in json.loads(line["body"]):
            yield line["sequence"], fact


async def recorded(change: Change | None = None) -> MemoryBus:
    """A bus with the recorded journal, after ``change`` was applied to its facts."""
    bus = MemoryBus(MemoryServer(lambda: 0), realm=REALM)
    await bus.start()
    await bus.journal.begin_terms(frozenset(range(PARTITIONS)))
    for text in json.loads(BLOBS.read_text("utf-8")).values():
        await bus.blobs.put(text.encode())
    subjects, chains, last = Subjects(REALM), dict[EntityId, str](), dict[EntityId, int]()
    for line in _lines():
        entity, body = subjects.entity(line["subject"]), line["body"].encode()
        if change is not None:
            body = _changed(body, change)
        linked = chains[entity] = chain(chains.get(entity, ZERO_CHAIN), body)
        settled: asyncio.Future[list[AppendOutcome]] = asyncio.get_running_loop().create_future()
        append = AppendRequest(entity, last.get(entity, 0), line["id"], body, linked)
        bus.journal.append([append], settled.set_result)
        await settled
        last[entity] = await bus.journal.end()
        assert last[entity] == line["sequence"], "facts name each other by where they stand"
    return bus


def _lines() -> list[Fields]:
    lines = JOURNAL.read_text("utf-8").splitlines()
    return [line for line in map(json.loads, lines) if "body" in line]


def _changed(body: bytes, change: Change) -> bytes:
    facts = json.loads(body)
    for fact in facts:
        change(fact)
    return json.dumps(facts).encode()


# --- recording ------------------------------------------------------------------------------------


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EmbeddedServer(folder / "store", admin=True) as server:
            flags = ("--driver", "sandbox", "--tools", "tests.execution.tools:registry")
            here = str(Path(__file__).parents[2])
            with node_on(server, REALM, folder, *flags, PYTHONPATH=here) as node:
                asyncio.run(_tell(server))
                node.stop()
            where = access_to(server, REALM)
            assert rookery_here(folder, "journal", "export", str(JOURNAL), *where).code == 0
            asyncio.run(_keep_blobs(server.url_for(Role.NODE, realm=REALM)))


async def _tell(server: EmbeddedServer) -> None:
    async with stock(server, REALM) as client:
        for session, programs in PROGRAMS.items():
            for number, (language, code) in enumerate(programs):
                body = {"code": code, "language": language, "timeout_ms": 300}
                await client.ask("run", session, body, Nats_Msg_Id=f"{session}-{number}")


async def _keep_blobs(url: str) -> None:
    bus = JetStreamBus(url, realm=REALM)
    await bus.start()
    try:
        named = set[str]()
        async for page in bus.journal.scan(Filter("turn")):
            for stored in page:
                offers = (fact.get("offer") for fact in json.loads(stored.body))
                named |= {offer["catalogue"] for offer in offers if offer}
        blobs = {digest: (await bus.blobs.get(digest)).decode() for digest in sorted(named)}
    finally:
        await bus.stop()
    BLOBS.write_text(json.dumps(blobs, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
