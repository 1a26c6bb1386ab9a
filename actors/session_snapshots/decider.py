"""The decider of the family ``sandbox``: records the snapshots of sessions.

A session generation may start from a snapshot only if it has no facts yet. The decider knows this
from admission's facts; its commit is fenced against facts that it has not observed.

Snapshots that a node takes on its own replace each other. Every tenth of them remains, so that a
replay or a fork of an old run repeats few runs before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from rookery.actors.kernel import Decider, Effect
from rookery.actors.kernel.machines import DESTROYED, INITIALIZING
from rookery.schemas.agents import ConversationOrigin
from rookery.schemas.calls import ForkedRun, ForkPoint
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import DEFAULT_CLASSES, Command, Fact, FactClasses
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import sandbox as facts
from rookery.schemas.facts.session import ClassesRaised, SessionFact
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = [
    "DeleteSnapshots",
    "RecordSnapshot",
    "RestoreSnapshot",
    "SnapshotState",
    "SnapshotsDecider",
]


LASTING_EVERY: Final = 10
"""One of so many snapshots remains."""


class DeleteSnapshots(Effect, frozen=True, kw_only=True):
    """Delete the blobs of replaced snapshots, unless clients know them."""

    blobs: tuple[str, ...]


class RecordSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a snapshot of a session is in the blob store."""

    generation: int
    snapshot_id: str
    blob: str
    language: Language
    build: str
    after_sequence: int
    size_bytes: int
    limits: SessionLimits | UnsetType = UNSET
    automatic: bool = False
    """No client requested it."""


class RestoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Start the session's next generation from a snapshot, and optionally with a run."""

    snapshot_id: str
    blob: str
    language: Language
    build: str
    size_bytes: int
    asked_by: str
    forked_from: ForkPoint | UnsetType = UNSET
    run: str | UnsetType = UNSET
    forked: ForkedRun | UnsetType = UNSET
    request: RunRequest | UnsetType = UNSET
    request_blob: str | UnsetType = UNSET
    limits: SessionLimits | UnsetType = UNSET
    rights: RightsSet | UnsetType = UNSET
    descends_from: tuple[str, ...] | UnsetType = UNSET
    classes: FactClasses | UnsetType = UNSET
    conversation: ConversationOrigin | UnsetType = UNSET


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True):
    """The last snapshot of a session, and the phase of the session."""

    generation: int = 0
    """The generation of the snapshot."""
    snapshot_id: str = ""
    blob: str = ""
    size_bytes: int = 0
    after_sequence: int = 0
    limits: SessionLimits | UnsetType = UNSET
    replaceable: bool = False
    """The next snapshot replaces it."""
    since_lasting: int = 0
    """The replaceable snapshots since the last one that remains."""
    replaced: tuple[str, ...] = ()
    """The blobs of the snapshots replaced last, which are to be deleted."""
    asked_by: str = ""
    """The command that started this generation from a snapshot, if one did."""
    run_id: str = ""
    """The run that the generation started with."""
    life: int = 1
    """The session's present generation."""
    phase: str = INITIALIZING
    classes: FactClasses = DEFAULT_CLASSES
    """What the facts of the session claim at least."""


class SnapshotsDecider(Decider):
    """The rules of the family ``sandbox``."""

    family = "sandbox"
    schema = 3
    codec: FactCodec[facts.SandboxFact] = FactCodec(facts.SANDBOX_FACTS)
    initial_state = SnapshotState()
    observes = frozenset({"session"})
    restart_fact = facts.HistoryRestarted
    effect_types = frozenset({facts.SnapshotKept, facts.SnapshotRestored})

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """None: the reader of the snapshot gets the error."""
        del key, command, error
        return ()

    def decide(self, state: SnapshotState, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        del now_ms
        match command.body:
            case RecordSnapshot() as record:
                return _record(state, record)
            case RestoreSnapshot() as restore:
                return _restore(state, command.key, restore)
        raise Refused("UNKNOWN_VERB", f"no rule for the command {type(command.body).__name__}")

    def evolve(self, state: SnapshotState, fact: facts.SandboxFact) -> SnapshotState:
        if isinstance(fact, facts.HistoryRestarted):
            return SnapshotState()
        recorded = replace(
            _with_replaced(state, fact),
            generation=fact.generation,
            snapshot_id=fact.snapshot_id,
            blob=fact.blob,
            size_bytes=fact.size_bytes,
            after_sequence=fact.after_sequence,
            limits=fact.limits,
        )
        if isinstance(fact, facts.SnapshotKept):
            replaceable = fact.replaceable is True
            count = state.since_lasting + 1 if replaceable else 0
            return replace(recorded, replaceable=replaceable, since_lasting=count)
        return replace(
            recorded,
            replaceable=False,
            since_lasting=0,
            asked_by=fact.asked_by,
            run_id="" if fact.run is UNSET else fact.run,
        )

    def observe(self, state: SnapshotState, fact: SessionFact) -> SnapshotState:
        if isinstance(fact, ClassesRaised):
            state = replace(state, classes=state.classes.raised_by(fact.classes))
        return replace(state, life=fact.generation, phase=fact.phase or state.phase)

    def classes(
        self, state: SnapshotState, command: Command[Any], facts: Sequence[Fact]
    ) -> FactClasses:
        del facts
        inherited = getattr(command.body, "classes", UNSET)
        return state.classes if inherited is UNSET else state.classes.raised_by(inherited)

    def effects(self, state: SnapshotState, fact: facts.SandboxFact) -> Sequence[Effect]:
        gone = _deletable(state)[-1:]
        if isinstance(fact, facts.HistoryRestarted) or not gone:
            return ()
        return (DeleteSnapshots(key=f"delete/{fact.id}", blobs=gone),)

    def pending_effects(self, state: SnapshotState, key: str) -> Sequence[Effect]:
        """Delete what a node that died may have left."""
        del key
        gone = _deletable(state)
        return (DeleteSnapshots(key=f"delete/{gone[-1]}", blobs=gone),) if gone else ()

    def must_be_fenced(self, decided: Sequence[Fact]) -> bool:
        return any(isinstance(fact, facts.SnapshotRestored) for fact in decided)


def _record(state: SnapshotState, record: RecordSnapshot) -> Sequence[Fact]:
    """Record a snapshot, unless it is a duplicate or older than the last one."""
    is_late = record.generation < max(state.generation, state.life)
    if is_late or record.after_sequence < state.after_sequence:
        return ()
    if record.after_sequence == state.after_sequence and record.limits == state.limits:
        return ()
    fields = asdict(record)
    replaceable = fields.pop("automatic") and state.since_lasting + 1 < LASTING_EVERY
    return (facts.SnapshotKept(**fields, replaceable=replaceable or UNSET),)


def _with_replaced(
    state: SnapshotState, fact: facts.SnapshotKept | facts.SnapshotRestored
) -> SnapshotState:
    if not state.replaceable or state.blob == fact.blob:
        return state
    return replace(state, replaced=(*state.replaced, state.blob)[-LASTING_EVERY:])


def _deletable(state: SnapshotState) -> tuple[str, ...]:
    """The blobs of replaced snapshots, without one that was recorded again."""
    return tuple(blob for blob in state.replaced if blob != state.blob)


def _restore(state: SnapshotState, session: str, restore: RestoreSnapshot) -> Sequence[Fact]:
    if restore.asked_by == state.asked_by:
        return ()
    life = state.life + (state.phase == DESTROYED)
    if state.phase not in (INITIALIZING, DESTROYED) or state.generation >= life:
        raise Refused(
            "SESSION_IDENTITY_IN_USE",
            f"session {session} exists already",
            hint="choose another id, or replace the session",
        )
    return (
        facts.SnapshotRestored(
            **asdict(restore), generation=life, after_sequence=state.after_sequence
        ),
    )
