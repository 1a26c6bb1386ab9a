"""Kill the server again and again under load and compare what was acked with what is there.

Goal: no acked append is lost, none is stored twice, each entity keeps its order, and a follower
sees all of it once. Method: one writer with several groups in flight over a few hundred entities,
one follower, a real nats-server that syncs before it acks, SIGKILL at evenly spread moments.

    python -m tests.bus.kill_campaign
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from contextlib import aclosing
from pathlib import Path

import msgspec

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import Appended, Filter, StoredMessage
from rookery.bus.ports.journal import Feed
from rookery.bus.server.server import EmbeddedServer
from tests.bus.journals import Writer, commit, gather, session

__all__ = ["Report", "run_campaign"]

_ENTITIES = 400
_GROUPS = 4
_GROUP_MAX = 60
_CATCH_UP_S = 90.0


class Report(msgspec.Struct):
    """What a campaign found; it raises if anything was lost, doubled or out of order."""

    kills: int = 0
    acked: int = 0
    stored: int = 0
    batches: int = 0
    lost_acks: int = 0
    resent: int = 0
    conflicts: int = 0


class _Load:
    """Groups of random size over entities that have nothing under way."""

    def __init__(self, bus: JetStreamBus, seed: int) -> None:
        self.acked: list[tuple[str, int, str]] = []
        """Entity, sequence and message id, as acknowledged."""
        self._bus, self._random = bus, random.Random(seed)
        self._writer = Writer()
        self._idle = [session(f"s{number}") for number in range(_ENTITIES)]
        self._stopping = False

    async def run(self) -> None:
        await asyncio.gather(*(self._write() for _ in range(_GROUPS)))

    def stop(self) -> None:
        self._stopping = True

    async def _write(self) -> None:
        while not self._stopping:
            self._random.shuffle(self._idle)
            size = self._random.randint(1, _GROUP_MAX)
            entities, self._idle = self._idle[:size], self._idle[size:]
            outcomes = await commit(
                self._bus.journal, [self._writer.next(entity) for entity in entities]
            )
            self._writer.learn(outcomes)
            for outcome in outcomes:
                assert isinstance(outcome, Appended), "no other client writes here"
                append = outcome.append
                self.acked.append((str(append.entity), outcome.sequence, append.message_id))
            self._idle += entities


async def run_campaign(store: Path, *, kills: int, acked_min: int, seed: int = 1) -> Report:
    """``kills`` kills while at least ``acked_min`` appends are acked."""
    server = EmbeddedServer(store, admin=True)
    await asyncio.to_thread(server.start)
    try:
        bus = JetStreamBus(server.url)
        await bus.start()
        try:
            return await _campaign(server, bus, kills, acked_min, seed)
        finally:
            await bus.stop()
    finally:
        await asyncio.to_thread(server.stop)


async def _campaign(
    server: EmbeddedServer, bus: JetStreamBus, kills: int, acked_min: int, seed: int
) -> Report:
    load = _Load(bus, seed)
    followed: list[StoredMessage] = []
    writing = asyncio.create_task(load.run())
    following = asyncio.create_task(_follow(bus.feed, followed))
    for kill in range(1, kills + 1):
        await _acked(load, writing, kill * acked_min // (kills + 1))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await _acked(load, writing, acked_min)
    load.stop()
    await writing
    end = await bus.journal.end()
    async with asyncio.timeout(_CATCH_UP_S):
        while not followed or followed[-1].sequence < end:
            await asyncio.sleep(0.01)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    stored = await gather(bus.journal.scan(Filter()))
    _compare(load.acked, stored, followed)
    counters = bus.journal.counters
    return Report(
        kills,
        len(load.acked),
        len(stored),
        counters.batches,
        counters.lost_acks,
        counters.resent,
        counters.conflicts,
    )


async def _follow(feed: Feed, followed: list[StoredMessage]) -> None:
    async with aclosing(feed.follow(Filter())) as follower:
        async for page in follower:
            followed += page


async def _acked(load: _Load, writing: asyncio.Task[None], number: int) -> None:
    while len(load.acked) < number:
        if writing.done():
            await writing
        await asyncio.sleep(0.002)


def _compare(
    acked: list[tuple[str, int, str]], stored: list[StoredMessage], followed: list[StoredMessage]
) -> None:
    found = [(str(one.entity), one.sequence, one.message_id) for one in stored]
    assert len({message_id for _, _, message_id in found}) == len(found), "stored twice"
    assert set(acked) == set(found), "acked and stored differ"
    for entity in {entity for entity, _, _ in acked}:
        told = [one for one in acked if one[0] == entity]
        assert told == [one for one in found if one[0] == entity], f"order of {entity}"
    assert followed == stored, "the follower saw something else"
    audit = ChainAudit()
    for one in stored:
        audit.add(one)


def main() -> None:
    kills, acked_min = (int(argument) for argument in (sys.argv[1:] or ("5", "10000")))
    with tempfile.TemporaryDirectory() as store:
        report = asyncio.run(run_campaign(Path(store), kills=kills, acked_min=acked_min))
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
