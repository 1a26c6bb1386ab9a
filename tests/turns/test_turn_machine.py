"""turn_execution against machines.json in both editions: every transition, every refusal."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import (
    ATTACHED,
    IDLE,
    RUNNING,
    Edition,
    HostPhase,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.turn import TURN_FACTS, TurnFact
from rookery.schemas.machines.turn import (
    ContentShape,
    LlmRetryFailureKind,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)
from tests.machines.laws import History, every_ask, histories, likely_ask
from tests.machines.oracle_comparison import Judged, variables
from tests.selection import examples

CODEC: FactCodec[TurnFact] = FactCodec(TURN_FACTS)
POOLS: dict[str, tuple[Any, ...]] = {
    "run_id": ("run-1",),
    "primitive_kind_in": ("None", "ConversationTurn", "ImmediateAppend", "ImmediateContextAppend"),
    "shape": tuple(shape.variant for shape in ContentShape),
    "vision": (True,),
    "image_results": (False,),
    "max_retries": (1,),
    "tool_count": (0, 2),
    "op_refs": ((), ("a",), ("a", "b")),
    "barrier_ids": ((), ("a",), ("c",)),
    "operation_ids": ((), ("a",), ("a", "b")),
    "error": ("broken",),
    "failure_kind": ("RateLimited", "CallTimeout"),
    "retry_attempt": (0, 1, 2),
    "selected_delay_ms": (700,),
    "cause_kind": ("Unknown", "LlmFailure"),
    "outcome": ("Failed", "None"),
    "apply_cause": (None, "refused"),
    "apply_message": ("why",),
}
USED = Turn(
    primitive_kind=TurnPrimitiveKind.CONVERSATION_TURN,
    admitted_content_shape=ContentShape.CONTEXT,
    vision_enabled=True,
    image_tool_results_enabled=True,
    tool_calls_pending=3,
    pending_op_refs=frozenset("ab"),
    barrier_operation_ids=frozenset("a"),
    has_barrier_ops=True,
    boundary_count=2,
    cancel_after_boundary=True,
    terminal_outcome=TurnTerminalOutcome.BUDGET_EXHAUSTED,
    terminal_cause_kind=TurnTerminalCauseKind.TOOL_FAILURE,
    last_runtime_apply_failure_cause="refused",
    last_runtime_apply_failure_message="why",
    extraction_attempts=1,
    max_extraction_retries=2,
    llm_retry_attempt=1,
    llm_retry_max_retries=3,
    llm_retry_selected_delay_ms=500,
    llm_retry_last_failure_kind=LlmRetryFailureKind.NETWORK_TIMEOUT,
)
"""No variable has its initial value, so a variable that a transition forgets to set shows."""
FLAG = (False, True)
LOOKS_AT: dict[str, dict[str, tuple[Any, ...]]] = {
    "primitive_applied": {
        "primitive_kind": (None, *TurnPrimitiveKind),
        "cancel_after_boundary": FLAG,
    },
    "tool_calls_resolved": {"barrier_satisfied": FLAG},
    "ops_barrier_satisfied": {
        "barrier_operation_ids": (frozenset(), frozenset("a"), frozenset("ab"))
    },
    "boundary_continue": {"cancel_after_boundary": FLAG},
    "boundary_complete": {"cancel_after_boundary": FLAG},
    "extraction_validation_failed": {"extraction_attempts": (1, 2, 3)},
    "retry_requested": {"llm_retry_attempt": (0, 1, 2)},
}
"""What an input's transitions read, beside the phases and the run."""
OF_RUN = ("run_completed", "run_failed", "run_cancelled", "force_cancel_no_run")


def every_turn(on: str) -> list[Turn]:
    looked_at = LOOKS_AT.get(on, {})
    runs = (None, "run-1", "run-2") if on in OF_RUN else ("run-1",)
    return [
        replace(
            USED,
            phase=phase,
            host=SessionHost(phase=host, current_run_id=run, pre_run_phase=IDLE),
            **dict(zip(looked_at, values, strict=True)),
        )
        for phase in TurnPhase
        for host in HostPhase
        for run in runs
        for values in itertools.product(*looked_at.values())
    ]


@pytest.mark.parametrize("edition", Edition)
def test_the_table_has_the_models_rows_and_parameters(edition: Edition) -> None:
    model = Judged(TURN, edition).oracle
    ours = [row for row in TURN.transitions if row.edition in (None, edition)]
    assert {(r.name, r.on) for r in ours} == {(r["name"], r["on"]) for r in model.rows}
    inputs = {row.on: TURN.inputs[row.on].params for row in ours}
    assert inputs == model.inputs
    assert list(TURN.phases) == model.model["phases"]


@pytest.mark.parametrize("edition", Edition)
def test_every_input_in_every_state_does_what_the_model_says(edition: Edition) -> None:
    judged = Judged(TURN, edition)
    for on in TURN.inputs:
        asked = every_ask(TURN, on, POOLS)
        for turn in every_turn(on):
            for params in asked:
                judged.step(turn, on, params)
    assert judged.hit == {row.name for row in TURN.transitions if row.edition in (None, edition)}


LIKELY = {
    **POOLS,
    "primitive_kind_in": ("ConversationTurn",),
    "shape": ("Empty",),
    "max_retries": (0, 2),
    "retry_attempt": (1, 2),
    "outcome": ("Failed",),
    "cause_kind": ("LlmFailure",),
}
HOSTS = [
    SessionHost(phase=RUNNING, current_run_id="run-1", pre_run_phase=ATTACHED, session_id="s"),
    SessionHost(phase=RUNNING, current_run_id="run-2", pre_run_phase=IDLE, session_id="s"),
    SessionHost(phase=RUNNING, session_id="s"),
    SessionHost(phase=ATTACHED, session_id="s"),
]
ENDS = (
    *("fatal_failure", "turn_limit_reached", "budget_exhausted", "time_budget_exceeded"),
    *("run_completed", "run_failed", "run_cancelled", "cancel_now", "extraction_failed"),
)


@pytest.mark.parametrize("edition", Edition)
def test_any_history_goes_the_way_of_the_model(edition: Edition) -> None:
    rng, judged = random.Random(7), Judged(TURN, edition)
    asked = {on: every_ask(TURN, on, LIKELY) for on in TURN.inputs}
    turn, accepted, steps = TURN.initial, 0, 4_000
    for _ in range(steps):
        if rng.random() < 0.05:
            turn = replace(turn, host=rng.choice(HOSTS))
        on, params = likely_ask(rng, TURN, turn, asked, edition=edition, rarely=ENDS)
        after = judged.step(turn, on, params)
        accepted += after is not turn
        turn = after
    assert accepted > 0.4 * steps
    assert judged.hit == {row.name for row in TURN.transitions if row.edition in (None, edition)}


@examples(150)
@given(histories(TURN, LIKELY, HOSTS))
def test_folded_facts_give_the_decided_state(steps: list[Any]) -> None:
    for edition in Edition:
        History(TURN, CODEC, edition).live(steps).check()


def test_folding_a_row_never_fails_whatever_the_state() -> None:
    for turn in every_turn("primitive_applied")[::7]:
        before = variables(turn)
        for row in TURN.transitions:
            for params in every_ask(TURN, row.on, LIKELY)[:3]:
                fact = replace(TURN.candidate(row.on, params), row=row.name)
                TURN.effects(TURN.evolve(turn, fact), fact)
        assert variables(turn) == before


def test_no_way_leads_to_a_turn_that_breaks_an_invariant() -> None:
    bounded = {**LIKELY, "shape": ("Empty",), "failure_kind": ("RateLimited",)}
    asked = [(on, params) for on in TURN.inputs for params in every_ask(TURN, on, bounded)]
    found, open_turns = {TURN.initial: 0}, deque([TURN.initial])
    while open_turns and len(found) < 3_000:
        turn = open_turns.popleft()
        for on, params in asked:
            try:
                fact = TURN.decide(turn, on, TURN.candidate(on, params))
            except TransitionRejected:
                continue
            after = TURN.evolve(turn, fact)
            if after not in found:
                found[after] = found[turn] + 1
                open_turns.append(after)
    for turn in found:
        broken = [holds.__name__ for holds in TURN.invariants if not holds(turn)]
        assert not broken, (turn, broken)
    assert {turn.phase for turn in found} == set(TurnPhase)
    assert max(found.values()) >= 6
