"""Histories written, folded and read back; and how they are made without a server."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

from rookery.actors.admission import AdmissionDecider, InFlightCounter
from rookery.actors.kernel import Decider
from rookery.actors.kernel.entities import Commit, Entity, Mailbox, PendingCommand, UnitOfWork
from rookery.bus import ports
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.ports import StoredMessage
from rookery.ops.bench.harness.bench_nodes import COMMAND, FAMILY, VERB, Advance, BenchDecider
from rookery.ops.bench.harness.load import LoadResult, Task, command_id
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import HandleInput
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import DEFAULT_CLASSES, Command, EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.run import RunRequest

__all__ = [
    "MESSAGES",
    "NextCommand",
    "apply_commit",
    "decide_commit",
    "fill",
    "fold_sessions",
    "fold_turns",
    "histories",
    "next_run",
    "next_turn",
    "read_and_fold",
    "sessions",
]

# --- entity histories -----------------------------------------------------------------------------

# Histories of entities, created by the kernel's own parts without a server.


NextCommand = Callable[[Entity, str], Command[Any]]
"""The next command of an entity, with this id."""

_NOW_MS = 1_763_000_000_000
_DIGEST = digest_bytes(COMMAND)[:16]
_ADVANCE = decode_command(COMMAND, Advance)
_RUN = RunRequest(code="sum(row['amount'] for row in rows)", inputs={"rows": [{"amount": 17}]})


def sessions() -> AdmissionDecider:
    """The session family, with quotas that are never reached."""
    return AdmissionDecider(
        queued_max=100,
        in_flight_max=10_000_000,
        realm_load=InFlightCounter(),
    )


def next_turn(entity: Entity, identity: str) -> Command[Any]:
    """The one command of the benches' family."""
    return Command(verb=VERB, key=entity.id.key, id=identity, body=_ADVANCE)


def next_run(entity: Entity, identity: str) -> Command[Any]:
    """The next command of a session with one run after the other: request it, then commit it."""
    key, current = entity.id.key, entity.state.current
    if current is None:
        return Command(verb="run", key=key, id=identity, body=_RUN)
    params = {"input_id": current.input_id, "run_id": current.run_id}
    body = HandleInput(input="commit", params=params)
    return Command(verb="admission", key=key, id=identity, body=body)


def decide_commit(entity: Entity, concern: Decider, command: Command[Any]) -> Commit:
    """The commit of this command, as the kernel makes it."""
    draft = UnitOfWork(entity, concern, f"{concern.family}@bench", DEFAULT_CLASSES)
    facts = concern.decide(draft.state, command, now_ms=_NOW_MS)
    draft.add(PendingCommand(command, _DIGEST, 0.0), facts, _NOW_MS)
    return draft.commit(f"bench.{command.id}", Mailbox(), 0.0)


def apply_commit(commit: Commit, sequence: int) -> StoredMessage:
    """Apply the commit as its ack does; the message as it is read back."""
    commit.entity_record.apply_commit(commit.state, sequence, commit.chain, commit.facts)
    return StoredMessage(
        sequence, commit.entity, commit.message_id, commit.chain, commit.body, _NOW_MS
    )


def histories(
    concern: Decider, following: NextCommand, *, entities: int, messages: int
) -> Iterator[list[StoredMessage]]:
    """The messages of one entity after the other."""
    for number in range(entities):
        entity = Entity(EntityId(concern.family, f"e{number}"), concern)
        first = number * messages
        yield [
            apply_commit(
                decide_commit(entity, concern, following(entity, command_id("h", sequence))),
                sequence + 1,
            )
            for sequence in range(first, first + messages)
        ]


# --- rebuild load ---------------------------------------------------------------------------------

# Rebuilding: histories written to the journal, folded in memory, read back and folded.
#
# Each kind is a task of a process of its own, so that its memory does not slow down the next one.


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
