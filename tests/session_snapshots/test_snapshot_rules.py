"""The rules of session snapshots: recording one, starting from one, and admission's part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.admission.commands import handle_input, open_from_snapshot
from rookery.actors.admission.evolve import evolve
from rookery.actors.admission.state import Admission
from rookery.actors.session_snapshots.decider import (
    RecordSnapshot,
    RestoreSnapshot,
    SnapshotsDecider,
    SnapshotState,
)
from rookery.schemas.calls import ForkedRun, ForkPoint, RunEnvironment
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session
from rookery.schemas.facts.sandbox import SnapshotRestored
from rookery.schemas.run import Language, RunRequest, SessionLimits, SessionMeta

CONCERN = SnapshotsDecider()
SNAPSHOT = {"snapshot_id": "snap_1", "blob": "1", "language": Language.TYPESCRIPT, "build": "b"}
POINT = ForkPoint(session="old", generation=1, run_id="r", calls=1, at_sequence=9)
OFFER = RunEnvironment(language=Language.PYTHON, build="b", seed="00", limits=SessionLimits())
FORKED = ForkedRun(of=POINT, begun_at_ms=5, offer=OFFER, batches=1, known_blob="2")


def command(body: object, id: str = "c") -> Command[Any]:  # noqa: A002 - its name.
    return Command(verb="inside", key="s", id=id, body=body)


def keep(generation: int, after_sequence: int) -> RecordSnapshot:
    return RecordSnapshot(
        **SNAPSHOT, generation=generation, after_sequence=after_sequence, size_bytes=1
    )


def restore(asked_by: str = "q", **more: Any) -> RestoreSnapshot:
    return RestoreSnapshot(**SNAPSHOT, size_bytes=1, asked_by=asked_by, **more)


class SnapshotEntity:
    """The entity of one session."""

    def __init__(self) -> None:
        self.state = SnapshotState()

    def after_session(self, phase: str, generation: int = 1) -> SnapshotEntity:
        """Observe a fact of admission."""
        fact = session.ExecutorEnsured(session_id_in="s", phase=phase, generation=generation)
        self.state = CONCERN.observe(self.state, fact)
        return self

    def ask(self, body: object) -> Sequence[Fact]:
        facts = CONCERN.decide(self.state, command(body), now_ms=0)
        for fact in facts:
            self.state = CONCERN.evolve(self.state, fact)
        assert CONCERN.load(CONCERN.dump(self.state)) == self.state
        return facts


# --- recording ------------------------------------------------------------------------------------


def test_an_older_snapshot_is_not_recorded():
    entity = SnapshotEntity().after_session("Attached")
    assert len(entity.ask(keep(1, 7))) == 1
    assert entity.ask(keep(1, 7)) == entity.ask(keep(1, 5)) == ()
    assert len(entity.ask(keep(1, 8))) == 1


def test_a_snapshot_is_recorded_again_only_with_other_limits():
    entity, limits = SnapshotEntity().after_session("Attached"), SessionLimits(cpu_ms=9)
    entity.ask(keep(1, 7))
    (repeated,) = entity.ask(replace(keep(1, 7), limits=limits))
    assert (repeated.limits, entity.state.limits) == (limits, limits)
    assert entity.ask(replace(keep(1, 7), limits=limits)) == ()


def test_no_snapshot_is_recorded_for_an_ended_generation():
    """It would hide the snapshot that the next generation began with."""
    entity = SnapshotEntity().after_session("Destroyed")
    (begun,) = entity.ask(restore())
    assert entity.ask(keep(1, 99)) == ()
    assert (begun.generation, entity.state.generation) == (2, 2)
    assert SnapshotEntity().after_session("Attached", 3).ask(keep(2, 99)) == ()


# --- what replaces what ---------------------------------------------------------------------------


def automatic(number: int) -> RecordSnapshot:
    record = RecordSnapshot(
        **SNAPSHOT, generation=1, after_sequence=number, size_bytes=1, automatic=True
    )
    return replace(record, blob=f"blob {number}")


def deleted(entity: SnapshotEntity, fact: Fact) -> list[str]:
    """What the node deletes when this fact is committed."""
    return [blob for effect in CONCERN.effects(entity.state, fact) for blob in effect.blobs]


def test_every_tenth_snapshot_of_a_node_remains():
    entity, gone = SnapshotEntity().after_session("Attached"), []
    for number in range(1, 32):
        (fact,) = entity.ask(automatic(number))
        gone += deleted(entity, fact)
    kept = {f"blob {number}" for number in (10, 20, 30, 31)}
    assert set(gone) == {f"blob {number}" for number in range(1, 32)} - kept


def test_a_snapshot_that_a_client_requested_is_not_replaced():
    entity = SnapshotEntity().after_session("Attached")
    for record in (automatic(1), replace(automatic(2), automatic=False), automatic(3)):
        (fact,) = entity.ask(record)
    assert entity.state.replaced == ("blob 1",)
    assert fact.replaceable


def test_a_snapshot_of_an_older_version_is_not_replaced():
    entity = SnapshotEntity().after_session("Attached")
    entity.ask(keep(1, 7))
    (fact,) = entity.ask(automatic(8))
    assert deleted(entity, fact) == []


def test_a_generation_that_begins_with_a_replaceable_snapshot_leaves_its_blob():
    entity = SnapshotEntity().after_session("Attached")
    entity.ask(automatic(1))
    entity.after_session("Destroyed")
    (begun,) = entity.ask(replace(restore(), blob="blob 1"))
    assert deleted(entity, begun) == []
    entity.after_session("Attached", 2).ask(replace(automatic(9), generation=2))
    assert entity.state.replaced == ()


def test_a_replaced_snapshot_that_is_recorded_again_is_not_deleted():
    entity = SnapshotEntity().after_session("Attached")
    for record in (automatic(1), automatic(2), replace(automatic(3), blob="blob 1")):
        (fact,) = entity.ask(record)
    assert "blob 1" not in deleted(entity, fact)
    (effect,) = CONCERN.pending_effects(entity.state, "s")
    assert effect.blobs == ("blob 2",)


def test_the_last_replaced_snapshots_are_deleted_again_by_the_next_owner():
    entity = SnapshotEntity().after_session("Attached")
    assert CONCERN.pending_effects(entity.state, "s") == ()
    for number in range(1, 4):
        entity.ask(automatic(number))
    (effect,) = CONCERN.pending_effects(entity.state, "s")
    assert effect.blobs == ("blob 1", "blob 2")


# --- starting from a snapshot ---------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["Idle", "Attached", "Running", "Retired", "Stopped"])
def test_an_open_session_does_not_start_from_a_snapshot(phase: str):
    with pytest.raises(Refused, match="SESSION_IDENTITY_IN_USE"):
        SnapshotEntity().after_session(phase).ask(restore())


def test_a_generation_starts_from_one_snapshot_also_before_it_is_open():
    entity = SnapshotEntity()
    entity.ask(restore("first"))
    with pytest.raises(Refused, match="SESSION_IDENTITY_IN_USE"):
        entity.ask(restore("second"))
    assert entity.ask(restore("first")) == ()


def test_a_duplicate_command_is_recognised_after_later_facts():
    entity = SnapshotEntity()
    entity.ask(restore("first"))
    entity.after_session("Running").ask(keep(1, 9))
    assert entity.ask(restore("first")) == ()


def test_a_restore_is_fenced_against_unseen_facts():
    (begun,) = SnapshotEntity().ask(restore())
    (recorded,) = SnapshotEntity().after_session("Attached").ask(keep(1, 1))
    assert (CONCERN.must_be_fenced([begun]), CONCERN.must_be_fenced([recorded])) == (True, False)


# --- admission ------------------------------------------------------------------------------------


def given(generation: int = 1, **fork: Any) -> Command[SnapshotRestored]:
    fact = SnapshotRestored(
        **SNAPSHOT, size_bytes=1, asked_by="q", after_sequence=0, generation=generation, **fork
    )
    return command(fact, f"sandbox.s.{generation}/session")


def admitted(state: Admission, fact: Command[SnapshotRestored]) -> tuple[Admission, list[str]]:
    facts = open_from_snapshot(state, fact, now_ms=1)
    for one in facts:
        state = evolve(state, one)
    return state, [type(one).__name__ for one in facts]


NEW = Admission(meta=SessionMeta(id="s"))
OPENED = ["Initialized", "Registered", "ExecutorEnsured"]


def test_a_session_opens_with_its_snapshot():
    state, kinds = admitted(NEW, given())
    assert kinds == OPENED
    assert (state.host.phase, state.meta.language) == ("Attached", Language.TYPESCRIPT)
    assert admitted(state, given())[1] == []


def test_limits_of_a_snapshot_apply_also_after_an_earlier_input():
    limits = SessionLimits(cpu_ms=9)
    state, kinds = admitted(NEW, given(limits=limits))
    assert (kinds, state.meta.limits) == ([*OPENED, "LimitsSet"], limits)
    quicker, _ = admitted(NEW, given())
    state, kinds = admitted(quicker, given(limits=limits))
    assert (kinds, state.meta.limits) == (["LimitsSet"], limits)
    assert admitted(quicker, given(2, limits=limits))[1] == [], "of a life that is not this one"


def test_a_destroyed_session_begins_its_next_generation():
    state, _ = admitted(NEW, given())
    destroy = HandleInput(input="Destroy", params={"session_id_in": "s"})
    for fact in handle_input(state, command(destroy), now_ms=1):
        state = evolve(state, fact)
    state, kinds = admitted(state, given(2))
    assert (kinds, state.generation, state.host.phase) == (OPENED, 2, "Attached")


def test_a_forked_run_is_prepared_with_the_session():
    request = RunRequest(session_id="s", code="1")
    fork = given(run="new", forked=FORKED, forked_from=POINT, request=request)
    state, kinds = admitted(NEW, fork)
    assert kinds == [*OPENED, "InputAccepted", "RunPrepared"]
    assert state.host.current_run_id == "new"
    (accepted,) = [
        f for f in open_from_snapshot(NEW, fork, now_ms=1) if isinstance(f, session.InputAccepted)
    ]
    assert (accepted.forked, accepted.request) == (FORKED, request)
    assert accepted.request_blob is UNSET
    assert (
        msgspec.json.decode(msgspec.json.encode(accepted), type=session.InputAccepted) == accepted
    )


def test_a_forked_run_is_queued_behind_an_earlier_input():
    state, _ = admitted(NEW, given())
    fork = given(run="new", forked=FORKED, request=RunRequest(session_id="s"))
    state, _ = admitted(state, given(run="first", forked=FORKED, request=RunRequest()))
    state, kinds = admitted(state, fork)
    assert kinds == ["InputAccepted"]
    assert (state.host.current_run_id, state.queue[0].run_id) == ("first", "new")
