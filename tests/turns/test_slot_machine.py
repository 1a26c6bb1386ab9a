"""session_turn_admission against machines.json, and its rules that surprise."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import TransitionRejected
from rookery.actors.turns.slot_machine import SLOT, PublicTerminal, SlotPhase, TurnSlot
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.turn import TURN_FACTS, TurnFact
from tests.machines.laws import History, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged

CODEC: FactCodec[TurnFact] = FactCodec(TURN_FACTS)
POOLS: dict[str, tuple[Any, ...]] = {
    "execution_kind_present": (False, True),
    "execution_kind": ("ContentTurn", "ResumePending"),
    "prompt_trimmed_text_byte_count": (0, 3),
    "prompt_non_text_block_count": (0, 1),
    "pending_continuation": ("RunPending", "NoPendingBoundary"),
    "keep_alive_request": ("Enable", "Disable", "Preserve"),
}
FLAG = (False, True)


def every_slot() -> list[TurnSlot]:
    return [
        TurnSlot(
            phase=phase,
            interrupt_pending=interrupt,
            shutdown_pending=shutdown,
            admission_drain_pending=drain,
            last_public_terminal=terminal,
        )
        for phase, interrupt, shutdown, drain, terminal in itertools.product(
            SlotPhase, FLAG, FLAG, FLAG, (None, PublicTerminal.NO_PENDING_BOUNDARY)
        )
    ]


def test_the_table_has_the_models_rows_and_parameters() -> None:
    model = Judged(SLOT).oracle
    assert [(r.name, r.on) for r in SLOT.transitions] == [(r["name"], r["on"]) for r in model.rows]
    assert {on: asked.params for on, asked in SLOT.inputs.items()} == model.inputs
    assert list(SLOT.phases) == model.model["phases"]


def test_every_input_in_every_state_does_what_the_model_says() -> None:
    judged = Judged(SLOT)
    for on in SLOT.inputs:
        for params in every_ask(SLOT, on, POOLS):
            for slot in every_slot():
                judged.step(slot, on, params)
    assert judged.hit == {row.name for row in SLOT.transitions}


def test_any_history_goes_the_way_of_the_model() -> None:
    rng, judged = random.Random(13), Judged(SLOT)
    asked = {on: every_ask(SLOT, on, POOLS) for on in SLOT.inputs}
    for _ in range(30):
        slot = SLOT.initial
        for _ in range(100):
            rarely = ("request_shutdown",)
            slot = judged.step(slot, *likely_ask(rng, SLOT, slot, asked, rarely=rarely))
    assert judged.hit == {row.name for row in SLOT.transitions}


@given(histories(SLOT, POOLS))
def test_folded_facts_give_the_decided_state(steps: list[Any]) -> None:
    History(SLOT, CODEC).live(steps).check()


def test_folding_a_row_never_fails_whatever_the_state() -> None:
    for slot in every_slot():
        for row in SLOT.transitions:
            for params in every_ask(SLOT, row.on, POOLS)[:2]:
                fact = replace(SLOT.candidate(row.on, params), row=row.name)
                SLOT.effects(SLOT.evolve(slot, fact), fact)


def test_no_way_leads_to_a_slot_that_breaks_an_invariant() -> None:
    asked = [(on, params) for on in SLOT.inputs for params in every_ask(SLOT, on, POOLS)]
    found, open_slots = {SLOT.initial}, deque([SLOT.initial])
    while open_slots:
        slot = open_slots.popleft()
        assert all(holds(slot) for holds in SLOT.invariants), slot
        for on, params in asked:
            try:
                fact = SLOT.decide(slot, on, SLOT.candidate(on, params))
            except TransitionRejected:
                continue
            after = SLOT.evolve(slot, fact)
            if after not in found:
                found.add(after)
                open_slots.append(after)
    assert {slot.phase for slot in found} == set(SlotPhase)


# --- one rule a test ------------------------------------------------------------------------------


def answered(slot: TurnSlot, on: str, **params: Any) -> tuple[TurnSlot, list[Any]]:
    fact = SLOT.decide(slot, on, SLOT.candidate(on, params))
    after = SLOT.evolve(slot, fact)
    return after, list(SLOT.effects(after, fact))


def after(*steps: str, start: TurnSlot = SLOT.initial) -> TurnSlot:
    for on in steps:
        start, _ = answered(start, on)
    return start


def names(effects: list[Any]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def refuses(slot: TurnSlot, on: str, **params: Any) -> bool:
    with pytest.raises(TransitionRejected):
        answered(slot, on, **params)
    return True


ADMITTED = after("claim_turn")
SHUT = after("request_shutdown")


def test_one_turn_has_the_slot_at_a_time() -> None:
    assert refuses(ADMITTED, "claim_turn")
    wound_up = after("begin_turn", "resolve_turn", "finalize_turn", start=ADMITTED)
    assert wound_up == SLOT.initial


def test_an_interrupt_before_the_turn_begins_is_still_pending_after() -> None:
    running = after("request_interrupt", "begin_turn", start=ADMITTED)
    assert running.interrupt_pending
    assert not after("resolve_turn", "finalize_turn", start=running).interrupt_pending
    assert not after("request_interrupt", "abort_claim", start=ADMITTED).interrupt_pending


def test_only_the_first_interrupt_wakes() -> None:
    once, first = answered(ADMITTED, "request_interrupt")
    _, second = answered(once, "request_interrupt")
    assert (first[0].wake, second[0].wake) == (True, False)


def test_a_shutdown_waits_for_the_running_turn() -> None:
    running = after("begin_turn", "request_shutdown", start=ADMITTED)
    assert running.phase is SlotPhase.RUNNING
    shut, told = answered(after("resolve_turn", start=running), "finalize_turn")
    assert shut.phase is SlotPhase.SHUTTING_DOWN
    assert names(told) == ["PendingAdmissionDrainRequested", "TurnAdmissionProjected"]


def test_the_drain_is_asked_for_exactly_once() -> None:
    again, told = answered(SHUT, "request_shutdown")
    assert (again, names(told)) == (SHUT, ["TurnAdmissionProjected"])


def test_the_session_is_torn_down_after_the_waiting_starts_were_answered() -> None:
    assert refuses(SHUT, "authorize_session_teardown")
    drained = after("resolve_pending_admission_drained", start=SHUT)
    assert refuses(drained, "resolve_pending_admission_drained")
    assert after("authorize_session_teardown", "authorize_session_teardown", start=drained)


@pytest.mark.parametrize("on", ["claim_turn", "begin_turn"])
def test_a_start_after_the_shutdown_is_answered_as_archived(on: str) -> None:
    same, (told,) = answered(SHUT, on)
    assert (same, told.terminal) == (SHUT, "SessionArchived")


def test_wishes_that_come_after_the_shutdown_are_answered_with_it_too() -> None:
    for on in ("resolve_start_turn_disposition", "resolve_runtime_keep_alive"):
        for params in every_ask(SLOT, on, POOLS):
            _, (told,) = answered(SHUT, on, **params)
            assert told.terminal == "SessionArchived"
    _, (dispatch,) = answered(SHUT, "authorize_start_turn_dispatch")
    assert dispatch.authorization == "Cancelled"
    assert answered(SHUT, "abort_claim")[0] == SHUT


@pytest.mark.parametrize("on", ["resolve_turn", "finalize_turn", "request_interrupt"])
def test_a_shut_slot_has_no_turn_to_wind_up(on: str) -> None:
    assert refuses(SHUT, on)


DISPOSITION = {
    "execution_kind_present": True,
    "execution_kind": "ContentTurn",
    "prompt_trimmed_text_byte_count": 0,
    "prompt_non_text_block_count": 0,
    "pending_continuation": "NoPendingBoundary",
}


def disposition(**changed: Any) -> tuple[str, TurnSlot]:
    params = {**DISPOSITION, **changed}
    slot, told = answered(ADMITTED, "resolve_start_turn_disposition", **params)
    return told[0].disposition, slot


def test_an_explicit_content_turn_runs_even_without_a_prompt() -> None:
    assert disposition()[0] == "RunContentTurn"


def test_going_on_ignores_the_prompt() -> None:
    prompted = {"execution_kind": "ResumePending", "prompt_trimmed_text_byte_count": 9}
    assert disposition(**prompted)[0] == "NoPendingBoundary"
    assert disposition(**prompted, pending_continuation="RunPending")[0] == "RunPending"


def test_a_start_without_a_turn_is_remembered_until_the_next_claim() -> None:
    _, slot = disposition(execution_kind_present=False, execution_kind=None)
    _, (told,) = answered(slot, "resolve_last_start_turn_public_terminal")
    assert told.terminal == "NoPendingBoundary"
    again = after("abort_claim", "claim_turn", start=slot)
    assert refuses(again, "resolve_last_start_turn_public_terminal")


def test_disabling_keep_alive_is_not_preserving_it() -> None:
    asked = ("Enable", "Disable", "Preserve")
    told = [answered(ADMITTED, "resolve_runtime_keep_alive", keep_alive_request=a) for a in asked]
    kept = [effect.decision for _, (effect,) in told]
    assert kept == ["PersistEnabled", "PersistDisabled", "PreserveExisting"]
