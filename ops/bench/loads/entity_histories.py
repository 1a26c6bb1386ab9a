"""Histories of entities, created by the kernel's own parts without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rookery.actors.admission import AdmissionDecider, ClaimRegistry, InFlightCounter
from rookery.actors.kernel import Commit, Decider, Entity, Mailbox, PendingCommand, UnitOfWork
from rookery.bus.ports import StoredMessage
from rookery.ops.bench.harness.bench_decider import COMMAND, VERB, Advance
from rookery.ops.bench.harness.load import command_id
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import HandleInput
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import Command, EntityId
from rookery.schemas.run import RunRequest

__all__ = [
    "NextCommand",
    "apply_commit",
    "decide_commit",
    "histories",
    "next_run",
    "next_turn",
    "sessions",
]

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
        claims=ClaimRegistry(),
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
    draft = UnitOfWork(entity, concern, f"{concern.family}@bench")
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
