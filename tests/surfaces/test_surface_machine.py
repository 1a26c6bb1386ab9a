"""external_tool_surface, judged by machines.json, and what its notes promise."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.decider import decode_state, encode_state
from rookery.actors.kernel.machines.machine import (
    Edition,
    HostPhase,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.surfaces.state import Surfaces
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.schemas.codec import FactCodec
from rookery.schemas.errors import Refused
from rookery.schemas.facts.surface import SURFACE_FACTS
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceBaseState,
    ExternalToolSurfaceGlobalPhase,
    ExternalToolSurfacePendingOp,
    ExternalToolSurfaceStagedOp,
)
from rookery.schemas.scalars import U64_MAX
from tests.machines.laws import History, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged, variables
from tests.machines.state_space import explored

CODEC: FactCodec[Any] = FactCodec(SURFACE_FACTS)
OPERATING, SHUTDOWN = ExternalToolSurfaceGlobalPhase
ATTACHED = SessionHost(phase=HostPhase.ATTACHED)
HOSTS = [
    ATTACHED,
    ATTACHED,
    SessionHost(phase=HostPhase.RUNNING),
    SessionHost(phase=HostPhase.RETIRED),
]
POOLS: dict[str, tuple[Any, ...]] = {
    "surface_id": ("s",),
    "now_ms": (1_000,),
    "staged_seq": (0, 4),
    "applied_at_turn": (9,),
    "task_seq": (0, 2),
    "lineage_seq": (0, 3),
    "cause": ("PendingFailed",),
    "epoch": (5,),
}
SHUT = "shutdown_surface"
RARELY = ("finalize_removal_forced", "mark_pending_failed", "snapshot_aligned", "register")
LIKELY = {**POOLS, "surface_id": ("s", "t"), "staged_seq": (1, 2, 3), "epoch": (0, 1)}
JOBS = {**LIKELY, "task_seq": (0, 1, 2, 3), "lineage_seq": (0, 1, 2, 3)}


def every_surface(host: SessionHost = ATTACHED) -> list[Surfaces]:
    """One surface in every combination of what rows look at, legal or not; nothing known of it
    otherwise, so that whatever a row sets is seen."""
    seen = itertools.product(
        (OPERATING, SHUTDOWN),
        (None, *ExternalToolSurfaceBaseState),
        (None, *ExternalToolSurfacePendingOp),
        (None, *list(ExternalToolSurfaceStagedOp)[1:]),
        (False, True),
        (None, 1),
    )
    return [
        Surfaces(
            host=host,
            phase=phase,
            active_surfaces=frozenset(["s"] if active else []),
            visible_surfaces=frozenset(["s"] if active else []),
            base_state=Map() if base is None else Map(s=base),
            pending_op=Map() if job is None else Map(s=job),
            pending_task_sequence=Map() if job is None else Map(s=2),
            pending_lineage_sequence=Map() if job is None else Map(s=3),
            staged_op=Map() if staged is None else Map(s=staged),
            staged_intent_sequence=Map() if staged is None else Map(s=4),
            reload_staged_surfaces=frozenset(["s"] if active else []),
            inflight_calls=Map() if calls is None else Map(s=calls),
            removal_timeout_at_ms=Map(s=1),
            next_staged_intent_sequence=4,
            next_pending_task_sequence=2,
        )
        for phase, base, job, staged, active, calls in seen
    ]


def taken(state: Surfaces, on: str, **params: Any) -> Surfaces:
    fact = SURFACES.decide(state, on, SURFACES.candidate(on, params))
    return SURFACES.evolve(state, fact)


def told(state: Surfaces, on: str, **params: Any) -> list[tuple[str, dict[str, Any]]]:
    fact = SURFACES.decide(state, on, SURFACES.candidate(on, params))
    effects = SURFACES.effects(SURFACES.evolve(state, fact), fact)
    return [(type(effect).__name__, variables(effect)) for effect in effects]


def refused(state: Surfaces, on: str, **params: Any) -> str:
    with pytest.raises(TransitionRejected) as rejected:
        taken(state, on, **params)
    return str(rejected.value)


def boundary(state: Surfaces, surface_id: str = "s") -> Surfaces:
    """A turn comes to a boundary and takes up what is staged."""
    staged = state.staged_intent_sequence[surface_id]
    return taken(
        state,
        "apply_boundary",
        surface_id=surface_id,
        now_ms=1_000,
        staged_seq=staged,
        applied_at_turn=1,
    )


def job(state: Surfaces, surface_id: str = "s") -> dict[str, Any]:
    return {
        "surface_id": surface_id,
        "task_seq": state.pending_task_sequence[surface_id],
        "lineage_seq": state.pending_lineage_sequence[surface_id],
    }


def active(surface_id: str = "s") -> Surfaces:
    state = Surfaces(host=ATTACHED)
    state = boundary(taken(state, "stage_add", surface_id=surface_id, now_ms=0), surface_id)
    return taken(state, "mark_pending_succeeded", **job(state, surface_id))


def removing() -> Surfaces:
    return boundary(taken(active(), "stage_remove", surface_id="s", now_ms=0))


# --- judged by the model --------------------------------------------------------------------------


def test_the_table_has_the_models_rows_and_parameters() -> None:
    model = Judged(SURFACES).oracle
    assert [(r.name, r.on) for r in SURFACES.transitions] == [
        (r["name"], r["on"]) for r in model.rows
    ]
    assert {on: asked.params for on, asked in SURFACES.inputs.items()} == model.inputs
    assert list(SURFACES.phases) == model.model["phases"]


def test_every_input_in_every_state_does_what_the_model_says() -> None:
    judged = Judged(SURFACES)
    states = every_surface()
    for on in SURFACES.inputs:
        for params in every_ask(SURFACES, on, POOLS):
            for state in states:
                judged.step(state, on, params)
    assert judged.hit == {row.name for row in SURFACES.transitions}


@pytest.mark.parametrize("host", HostPhase)
def test_only_an_attached_or_running_host_serves_surfaces(host: HostPhase) -> None:
    judged = Judged(SURFACES, Edition.SEED)
    for on in SURFACES.inputs:
        for params in every_ask(SURFACES, on, POOLS):
            for state in every_surface(SessionHost(phase=host))[::17]:
                judged.step(state, on, params)
    assert bool(judged.hit) == (host in (HostPhase.ATTACHED, HostPhase.RUNNING))


@pytest.mark.parametrize("edition", Edition)
def test_any_history_goes_the_way_of_the_model(edition: Edition) -> None:
    rng, judged = random.Random(5), Judged(SURFACES, edition)
    lives, steps = 12, 250
    for _ in range(lives):
        state = Surfaces(host=ATTACHED)
        for _ in range(steps):
            if rng.random() < 0.1:
                state = replace(state, host=rng.choice(HOSTS))
            surface_id = rng.choice(("s", "t"))
            likely = LIKELY | {
                "surface_id": (surface_id,),
                "staged_seq": (state.staged_intent_sequence.get(surface_id, 0), 1),
                "task_seq": (state.pending_task_sequence.get(surface_id, 0),),
                "lineage_seq": (state.pending_lineage_sequence.get(surface_id, 0), 1),
            }
            inputs = set(SURFACES.inputs) - ({SHUT} if rng.random() < 0.95 else set())
            asked = {on: every_ask(SURFACES, on, likely) for on in sorted(inputs)}
            on, params = likely_ask(rng, SURFACES, state, asked, edition=edition, rarely=RARELY)
            state = judged.step(state, on, params)
    assert judged.accepted > 0.4 * lives * steps
    assert judged.hit == {row.name for row in SURFACES.transitions}


# --- laws -----------------------------------------------------------------------------------------


@given(histories(SURFACES, JOBS, HOSTS))
def test_folded_facts_give_the_decided_state(steps: list[Any]) -> None:
    History(SURFACES, CODEC, initial=Surfaces(host=ATTACHED)).live(steps).check()


def test_folding_a_row_never_fails_whatever_the_state() -> None:
    for state in every_surface(SessionHost())[::5]:
        before = variables(state)
        for row in SURFACES.transitions:
            for params in every_ask(SURFACES, row.on, POOLS):
                fact = replace(SURFACES.candidate(row.on, params), row=row.name)
                SURFACES.effects(SURFACES.evolve(state, fact), fact)
        assert variables(state) == before


def test_no_way_leads_to_surfaces_that_break_an_invariant() -> None:
    def near(state: Surfaces) -> bool:
        counted = state.next_staged_intent_sequence + 2 * state.next_pending_task_sequence
        return counted <= 8 and state.snapshot_epoch <= 5 and sum(state.inflight_calls.values()) < 2

    pools = {**JOBS, "surface_id": ("s",), "staged_seq": (1, 2, 3, 4), "epoch": (0,)}
    found = explored(SURFACES, pools, Surfaces(host=ATTACHED), near)
    assert len(found) > 1_000
    assert max(found.values()) >= 8
    assert {state.phase for state in found} == {OPERATING, SHUTDOWN}
    assert {state.base_state.get("s") for state in found} >= {None, "Active", "Removing", "Removed"}


def test_counters_stop_at_the_largest_number_there_is() -> None:
    full = replace(
        active(),
        next_staged_intent_sequence=U64_MAX,
        next_pending_task_sequence=U64_MAX,
        inflight_calls=Map(s=U64_MAX),
        snapshot_epoch=U64_MAX,
    )
    assert taken(full, "call_started", surface_id="s").inflight_calls["s"] == U64_MAX
    staged = taken(full, "stage_add", surface_id="s", now_ms=0)
    assert staged.staged_intent_sequence["s"] == U64_MAX
    pending = boundary(replace(staged, staged_intent_sequence=Map(s=3)))
    assert pending.pending_task_sequence["s"] == pending.snapshot_epoch == U64_MAX
    assert decode_state(encode_state(pending), Surfaces) == pending


@pytest.mark.parametrize("now_ms", [-1, 2**63, 2**64])
def test_a_number_no_codec_could_hold_is_refused_before_it_is_a_fact(now_ms: int) -> None:
    with pytest.raises(Refused) as refusal:
        SURFACES.candidate("stage_add", {"surface_id": "s", "now_ms": now_ms})
    assert refusal.value.code == "INVALID_ARGUMENT"


# --- what a reader would not guess ----------------------------------------------------------------


def test_a_boundary_computed_before_a_restage_is_refused() -> None:
    state = taken(Surfaces(host=ATTACHED), "stage_add", surface_id="s", now_ms=0)
    seen = {"surface_id": "s", "now_ms": 0, "applied_at_turn": 1, "staged_seq": 1}
    assert taken(state, "apply_boundary", **seen).pending_op["s"] == "Add"
    restaged = taken(state, "stage_add", surface_id="s", now_ms=0)
    assert refused(restaged, "apply_boundary", **seen).endswith(
        "guard rejected transition from phase Attached for apply_boundary"
    )


def test_a_completion_of_an_older_job_or_of_one_that_came_back_is_refused() -> None:
    state = active()
    again = boundary(taken(state, "stage_reload", surface_id="s", now_ms=0))
    assert job(again) == {"surface_id": "s", "task_seq": 2, "lineage_seq": 2}
    for task, lineage in ((1, 1), (1, 2), (2, 1), (0, 0)):
        late = {"surface_id": "s", "task_seq": task, "lineage_seq": lineage}
        refused(again, "mark_pending_succeeded", **late)
        refused(again, "mark_pending_failed", **late, cause="pending_failed")
    done = taken(again, "mark_pending_succeeded", **job(again))
    refused(done, "mark_pending_succeeded", **job(again))


def test_sequences_are_counted_over_all_surfaces_from_one() -> None:
    state = Surfaces(host=ATTACHED)
    for surface_id in ("s", "t"):
        state = boundary(taken(state, "stage_add", surface_id=surface_id, now_ms=0), surface_id)
    assert dict(state.pending_task_sequence) == {"s": 1, "t": 2}
    assert dict(state.pending_lineage_sequence) == {"s": 1, "t": 2}


def test_the_last_staged_intent_wins_and_only_a_reload_keeps_the_reload_mark() -> None:
    state = taken(active(), "stage_reload", surface_id="s", now_ms=0)
    assert state.reload_staged_surfaces == {"s"}
    for on, operation in (("stage_add", "Add"), ("stage_remove", "Remove")):
        after = taken(state, on, surface_id="s", now_ms=0)
        assert dict(after.staged_op) == {"s": operation}
        assert not after.reload_staged_surfaces


def test_a_refused_reload_does_not_even_make_the_surface_known() -> None:
    state = Surfaces(host=ATTACHED)
    refused(state, "stage_reload", surface_id="s", now_ms=0)
    assert not state.known_surfaces


def test_while_a_job_is_under_way_no_boundary_applies_not_even_a_removal() -> None:
    state = boundary(taken(active(), "stage_reload", surface_id="s", now_ms=0))
    state = taken(state, "stage_remove", surface_id="s", now_ms=0)
    with pytest.raises(TransitionRejected):
        boundary(state)
    assert state.staged_op["s"] == "Remove"
    done = taken(state, "mark_pending_succeeded", **job(state))
    assert boundary(done).base_state["s"] == "Removing"


def test_while_a_surface_is_removed_an_add_waits_and_a_removal_is_consumed() -> None:
    waits = taken(removing(), "stage_add", surface_id="s", now_ms=0)
    with pytest.raises(TransitionRejected):
        boundary(waits)
    gone = taken(waits, "finalize_removal_clean", surface_id="s")
    assert boundary(gone).pending_op["s"] == "Add"
    consumed = boundary(taken(removing(), "stage_remove", surface_id="s", now_ms=0))
    assert (dict(consumed.staged_op), consumed.base_state["s"]) == ({}, "Removing")


def test_a_failure_without_a_job_is_emitted_after_one_completed() -> None:
    none = {"surface_id": "s", "task_seq": 0, "lineage_seq": 0, "cause": "pending_failed"}
    refused(Surfaces(host=ATTACHED), "mark_pending_failed", **none)
    state = active()
    ((name, delta),) = told(state, "mark_pending_failed", **none)
    assert (name, delta["operation"], delta["phase"]) == ("EmitExternalToolDelta", "Add", "Failed")
    after = taken(state, "mark_pending_failed", **none)
    assert (after.visible_surfaces, after.snapshot_epoch) == ({"s"}, state.snapshot_epoch)


def test_the_epoch_rises_with_what_is_visible_and_with_what_is_pending() -> None:
    staged = taken(Surfaces(host=ATTACHED), "stage_add", surface_id="s", now_ms=0)
    pending = boundary(staged)
    shown = taken(pending, "mark_pending_succeeded", **job(pending))
    failed = taken(pending, "mark_pending_failed", **job(pending), cause="pending_failed")
    gone = taken(removing(), "finalize_removal_clean", surface_id="s")
    noop = boundary(taken(gone, "stage_remove", surface_id="s", now_ms=0))
    epochs = [state.snapshot_epoch for state in (staged, pending, failed, shown, removing(), gone)]
    assert epochs == [0, 1, 1, 2, 3, 4]
    assert noop.snapshot_epoch == gone.snapshot_epoch
    assert ("RefreshVisibleSurfaceSet", {"snapshot_epoch": 2}) in told(
        pending, "mark_pending_succeeded", **job(pending)
    )


def test_alignment_is_whatever_the_consumer_says() -> None:
    state = taken(active(), "snapshot_aligned", epoch=77)
    assert (state.snapshot_aligned_epoch, state.snapshot_epoch) == (77, 2)


def test_a_call_is_counted_or_rejected_by_an_effect_and_never_refused() -> None:
    assert taken(active(), "call_started", surface_id="s").inflight_calls["s"] == 1
    for state, surface_id, cause in (
        (removing(), "s", "SurfaceDraining"),
        (active(), "nobody", "SurfaceUnavailable"),
        (taken(removing(), "finalize_removal_forced", surface_id="s"), "s", "SurfaceUnavailable"),
    ):
        rejected = [("RejectSurfaceCall", {"surface_id": surface_id, "cause": cause})]
        assert told(state, "call_started", surface_id=surface_id) == rejected
        assert taken(state, "call_started", surface_id=surface_id) == state


def test_a_call_that_finishes_twice_or_after_the_end_is_refused() -> None:
    refused(active(), "call_finished", surface_id="s")
    busy = taken(active(), "call_started", surface_id="s")
    busy = boundary(taken(busy, "stage_remove", surface_id="s", now_ms=0))
    assert taken(busy, "call_finished", surface_id="s").inflight_calls["s"] == 0
    gone = taken(busy, "finalize_removal_forced", surface_id="s")
    refused(gone, "call_finished", surface_id="s")


def test_a_removal_drains_until_its_calls_are_over_or_it_is_forced() -> None:
    busy = taken(active(), "call_started", surface_id="s")
    busy = boundary(taken(busy, "stage_remove", surface_id="s", now_ms=0))
    assert not busy.visible_surfaces
    assert (busy.removal_draining_since_ms["s"], busy.removal_timeout_at_ms["s"]) == (1_000, 31_000)
    refused(busy, "finalize_removal_clean", surface_id="s")
    forced = taken(busy, "finalize_removal_forced", surface_id="s")
    assert (forced.base_state["s"], forced.inflight_calls["s"]) == ("Removed", 0)
    assert not forced.removal_timeout_at_ms
    drained = taken(busy, "call_finished", surface_id="s")
    names = [name for name, _ in told(drained, "finalize_removal_clean", surface_id="s")]
    assert names == ["CloseSurfaceConnection", "RefreshVisibleSurfaceSet", "EmitExternalToolDelta"]


def test_a_shutdown_stops_changes_and_nothing_else_and_is_for_ever() -> None:
    state = taken(taken(active(), "call_started", surface_id="s"), "shutdown_surface")
    for on in ("stage_add", "stage_remove", "stage_reload"):
        refused(state, on, surface_id="s", now_ms=0)
    assert taken(state, "call_finished", surface_id="s").inflight_calls["s"] == 0
    assert taken(state, "register", surface_id="t").known_surfaces == {"s", "t"}
    assert taken(state, "shutdown_surface") == state
    assert state.visible_surfaces == {"s"}


def test_an_added_surface_that_never_came_up_keeps_no_state() -> None:
    pending = boundary(taken(Surfaces(host=ATTACHED), "stage_add", surface_id="s", now_ms=0))
    failed = taken(pending, "mark_pending_failed", **job(pending), cause="pending_failed")
    assert "s" not in failed.base_state
    assert failed.last_delta_phase["s"] == "Failed"
