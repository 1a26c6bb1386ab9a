"""Rebuilding: histories written to the journal, folded in memory, read back and folded.

Each kind is a task of a process of its own, so that its memory does not slow down the next one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import perf_counter

from rookery.actors.kernel import Commit, Decider, Entity
from rookery.bus import ports
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.ops.bench.harness.bench_decider import FAMILY, BenchDecider
from rookery.ops.bench.harness.load import LoadResult, Task, command_id
from rookery.ops.bench.loads.entity_histories import (
    NextCommand,
    apply_commit,
    decide_commit,
    histories,
    next_run,
    next_turn,
    sessions,
)
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = ["MESSAGES", "fill", "fold_sessions", "fold_turns", "read_and_fold"]

MESSAGES = 10
"""Per entity; each has one fact, a session's up to four."""
_GROUP = 1_000


async def fold_turns(connection: Connection, task: Task) -> LoadResult:
    """Facts per second of the benches' own family."""
    del connection
    return _fold_histories(BenchDecider(), next_turn, task)


async def fold_sessions(connection: Connection, task: Task) -> LoadResult:
    """Facts per second of the session family."""
    del connection
    return _fold_histories(sessions(), next_run, task)


async def fill(connection: Connection, task: Task) -> LoadResult:
    """Append every entity's messages to the journal as a node does."""
    del connection
    concern, bus = BenchDecider(), JetStreamBus(task.url, sync=task.sync)
    entities = [Entity(EntityId(FAMILY, f"e{n}"), concern) for n in range(task.entities)]
    await bus.start()
    await bus.journal.begin_terms(frozenset(range(ports.PARTITIONS)))
    start_s = perf_counter()
    try:
        for first in range(0, MESSAGES * task.entities, task.entities):
            for at in range(0, task.entities, _GROUP):
                commits = [
                    decide_commit(entity, concern, next_turn(entity, command_id(task.cell, number)))
                    for number, entity in enumerate(entities[at : at + _GROUP], first + at)
                ]
                await _append(bus.journal, commits)
    finally:
        await bus.stop()
    return LoadResult(MESSAGES * task.entities, perf_counter() - start_s)


async def read_and_fold(connection: Connection, task: Task) -> LoadResult:
    """Read and fold every entity in one pass over the journal."""
    del connection
    concern, bus = BenchDecider(), JetStreamBus(task.url)
    lives: defaultdict[EntityId, list[ports.StoredMessage]] = defaultdict(list)
    await bus.start()
    start_s = perf_counter()
    try:
        async for page in bus.journal.scan(ports.Filter(family=FAMILY)):
            for stored in page:
                lives[stored.entity].append(stored)
    finally:
        await bus.stop()
    entities = _fold(concern, lives.values())
    seconds = perf_counter() - start_s
    if (facts := sum(entity.fact_count for entity in entities)) < MESSAGES * task.entities:
        raise Failed("FACT_INVALID", f"only {facts} facts were read back")
    return LoadResult(len(entities), seconds)


def _fold_histories(concern: Decider, following: NextCommand, task: Task) -> LoadResult:
    lives = list(histories(concern, following, entities=task.entities, messages=MESSAGES))
    start_s = perf_counter()
    entities = _fold(concern, lives)
    return LoadResult(sum(entity.fact_count for entity in entities), perf_counter() - start_s)


def _fold(concern: Decider, lives: Iterable[Sequence[ports.StoredMessage]]) -> list[Entity]:
    entities = []
    for life in lives:
        entity = Entity(life[0].entity, concern)
        entity.fold(concern, None, life)
        if entity.load_error is not None:
            raise entity.load_error
        entities.append(entity)
    return entities


async def _append(journal: ports.Journal, commits: Sequence[Commit]) -> None:
    stored: asyncio.Queue[list[ports.AppendOutcome]] = asyncio.Queue()
    journal.append(commits, stored.put_nowait)
    left = len(commits)
    while left:
        for outcome in await stored.get():
            assert isinstance(outcome, ports.Appended)
            assert isinstance(outcome.append, Commit)
            apply_commit(outcome.append, outcome.sequence)
            left -= 1
