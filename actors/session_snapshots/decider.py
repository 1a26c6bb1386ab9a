"""The family ``sandbox`` as the kernel sees it: where sessions' memories were kept.

A life of a session may begin with a memory only while nothing of that life stands. Whether it does
is admission's to say, from whose facts it is followed; the commit is fenced against those it has
not seen. What is in a snapshot, and when one is worth keeping, is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from rookery.actors.kernel import Decider, Effect
from rookery.actors.kernel.machines.session_host import DESTROYED, INITIALIZING
from rookery.schemas.calls import ForkedRun, ForkPoint
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import sandbox as facts
from rookery.schemas.facts.session import SessionFact
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = ["RecordSnapshot", "RestoreSnapshot", "SnapshotState", "SnapshotsDecider"]


class RecordSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Put on record that a session's memory is in the blob store."""

    generation: int
    snapshot_id: str
    blob: str
    language: Language
    build: str
    after_sequence: int
    size_bytes: int
    limits: SessionLimits | UnsetType = UNSET


class RestoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Begin the session, or its next life, with a snapshot's memory, and perhaps with a run."""

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


class SnapshotState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session's memory was kept last, and where the session stands."""

    generation: int = 0
    """The life it was kept in."""
    snapshot_id: str = ""
    blob: str = ""
    size_bytes: int = 0
    after_sequence: int = 0
    limits: SessionLimits | UnsetType = UNSET
    asked_by: str = ""
    """The command with which that life began, if it began with a memory."""
    run_id: str = ""
    """The run it then began with."""
    life: int = 1
    """The session's present one."""
    phase: str = INITIALIZING


class SnapshotsDecider(Decider):
    """The rules of the family ``sandbox``."""

    family = "sandbox"
    schema = 2
    codec: FactCodec[facts.SandboxFact] = FactCodec(facts.SANDBOX_FACTS)
    initial_state = SnapshotState()
    observes = frozenset({"session"})
    restart_fact = facts.HistoryRestarted

    def effects_when_damaged(
        self, key: str, command: Command[Any], error: CodedError
    ) -> Sequence[Effect]:
        """Whoever needs the memory is told when it is read."""
        del key, command, error
        return ()

    def decide(self, state: SnapshotState, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        del now_ms
        match command.body:
            case RecordSnapshot() as keep:
                return _record(state, keep)
            case RestoreSnapshot() as restore:
                return _restore(state, command.key, restore)
        raise Refused("UNKNOWN_VERB", f"nothing to keep in {type(command.body).__name__}")

    def evolve(self, state: SnapshotState, fact: facts.SandboxFact) -> SnapshotState:
        if isinstance(fact, facts.HistoryRestarted):
            return SnapshotState()
        kept = replace(
            state,
            generation=fact.generation,
            snapshot_id=fact.snapshot_id,
            blob=fact.blob,
            size_bytes=fact.size_bytes,
            after_sequence=fact.after_sequence,
            limits=fact.limits,
        )
        if isinstance(fact, facts.SnapshotKept):
            return kept
        return replace(kept, asked_by=fact.asked_by, run_id="" if fact.run is UNSET else fact.run)

    def observe(self, state: SnapshotState, fact: SessionFact) -> SnapshotState:
        return replace(state, life=fact.generation, phase=fact.phase or state.phase)

    def must_be_fenced(self, decided: Sequence[Fact]) -> bool:
        return any(isinstance(fact, facts.SnapshotRestored) for fact in decided)


def _record(state: SnapshotState, keep: RecordSnapshot) -> Sequence[Fact]:
    """What comes late, of a life that is over or of an earlier moment, is worth nothing; nor is
    what is known."""
    late = keep.generation < max(state.generation, state.life)
    if late or keep.after_sequence < state.after_sequence:
        return ()
    if keep.after_sequence == state.after_sequence and keep.limits == state.limits:
        return ()
    return (facts.SnapshotKept(**asdict(keep)),)


def _restore(state: SnapshotState, session: str, restore: RestoreSnapshot) -> Sequence[Fact]:
    if restore.asked_by == state.asked_by:
        return ()
    life = state.life + (state.phase == DESTROYED)
    if state.phase not in (INITIALIZING, DESTROYED) or state.generation >= life:
        raise Refused(
            "SESSION_IDENTITY_IN_USE",
            f"there is a session {session}",
            hint="choose another id, or have it replaced",
        )
    return (
        facts.SnapshotRestored(
            **asdict(restore), generation=life, after_sequence=state.after_sequence
        ),
    )
