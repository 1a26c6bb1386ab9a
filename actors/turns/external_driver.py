"""A turn that a client drives by its machine's inputs, and a turn as its handle shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel.machines import Reservation, reserved_for_run
from rookery.actors.turn_inputs import external_result
from rookery.actors.turns.transitions import Turn
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command
from rookery.schemas.errors import Refused
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    AsyncOpRef,
    LoopState,
    TurnPhase,
    TurnStateSnapshot,
    WaitPolicy,
)
from rookery.schemas.run import RunResult

if TYPE_CHECKING:
    from rookery.actors.turns.state import SessionTurns

__all__ = [
    "END_INPUTS",
    "end_result",
    "loop_state",
    "turn_reservation",
    "turn_snapshot",
    "without_result",
]

# --- external driver ------------------------------------------------------------------------------

# The input that ends the run may carry its result, which the run's clients get. While a node drives
# the session's run, the inputs of drivers are reserved for it.


END_INPUTS: Final = frozenset({"run_completed", "run_failed", "run_cancelled"})
"""The inputs that end a run; their parameter ``result`` is no part of the machine."""
_PHASES: Final[dict[type, TurnPhase]] = {
    facts.Completed: TurnPhase.COMPLETED,
    facts.Failed: TurnPhase.FAILED,
    facts.Cancelled: TurnPhase.CANCELLED,
}


def turn_reservation(state: SessionTurns) -> Reservation | None:
    """Of the session's current run, from the request to the end of its turn."""
    run_id, run = state.host.current_run_id, state.driving
    if run_id is None:
        return None
    has_begun = run is not None and run.run_id == run_id
    is_driven = (run is not None and run.over is False) if has_begun else run_id in state.asked
    return reserved_for_run(run_id) if is_driven else None


def without_result(
    command: Command[HandleInput],
) -> tuple[Command[HandleInput], RunResult | UnsetType]:
    """The input without the result of its run, and that result."""
    on, params = command.body.input, command.body.params
    if on not in END_INPUTS or "result" not in params:
        return command, UNSET
    try:
        result = msgspec.convert(params["result"], RunResult)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"{on}: result: {error}") from None
    others = {name: value for name, value in params.items() if name != "result"}
    return replace(command, body=HandleInput(input=on, params=others)), result


def end_result(
    state: SessionTurns, end: Any, given: RunResult | UnsetType
) -> RunResult | UnsetType:
    """The result in the last fact of a turn that a client ended. Clients that asked for the run get
    one in any case."""
    if given is not UNSET or end.run not in state.asked:
        return given
    return external_result(_PHASES[type(end)])


# --- turn view ------------------------------------------------------------------------------------

# Derived from the machine's state alone. Run and operation ids are shown only if they are UUIDs.


U32_MAX: Final = 2**32 - 1

_LOOP_STATES: Final = {
    TurnPhase.READY: LoopState.CALLING_LLM,
    TurnPhase.APPLYING_PRIMITIVE: LoopState.CALLING_LLM,
    TurnPhase.CALLING_LLM: LoopState.CALLING_LLM,
    TurnPhase.WAITING_FOR_OPS: LoopState.WAITING_FOR_OPS,
    TurnPhase.DRAINING_BOUNDARY: LoopState.DRAINING_EVENTS,
    TurnPhase.EXTRACTING: LoopState.DRAINING_EVENTS,
    TurnPhase.ERROR_RECOVERY: LoopState.ERROR_RECOVERY,
    TurnPhase.CANCELLING: LoopState.CANCELLING,
    TurnPhase.COMPLETED: LoopState.COMPLETED,
    TurnPhase.FAILED: LoopState.COMPLETED,
    TurnPhase.CANCELLED: LoopState.COMPLETED,
}


def loop_state(phase: TurnPhase) -> LoopState:
    """The coarse view of a phase."""
    return _LOOP_STATES[phase]


def turn_snapshot(turn: Turn) -> TurnStateSnapshot:
    """The turn's present state."""
    barrier = turn.barrier_operation_ids
    pending = (
        AsyncOpRef(shown, WaitPolicy.BARRIER if own in barrier else WaitPolicy.DETACHED)
        for own in turn.pending_op_refs
        if (shown := _canonical(own)) is not None
    )
    return TurnStateSnapshot(
        active_run_id=None if turn.phase.is_terminal else _canonical(turn.host.current_run_id),
        loop_state=loop_state(turn.phase),
        turn_phase=turn.phase,
        primitive_kind=turn.primitive_kind,
        admitted_content_shape=turn.admitted_content_shape,
        vision_enabled=turn.vision_enabled,
        image_tool_results_enabled=turn.image_tool_results_enabled,
        tool_calls_pending=turn.tool_calls_pending,
        pending_op_refs=tuple(sorted(set(pending))),
        barrier_operation_ids=tuple(sorted(set(filter(None, map(_canonical, barrier))))),
        has_barrier_ops=turn.has_barrier_ops,
        barrier_satisfied=turn.barrier_satisfied,
        boundary_count=turn.boundary_count,
        cancel_after_boundary=turn.cancel_after_boundary,
        terminal_outcome=turn.terminal_outcome,
        terminal_cause_kind=turn.terminal_cause_kind,
        extraction_attempts=turn.extraction_attempts,
        max_extraction_retries=turn.max_extraction_retries,
        llm_retry_attempt=min(turn.llm_retry_attempt, U32_MAX),
        llm_retry_max_retries=min(turn.llm_retry_max_retries, U32_MAX),
        llm_retry_selected_delay_ms=turn.llm_retry_selected_delay_ms,
    )


def _canonical(text: str | None) -> str | None:
    """The canonical form of a UUID; ``None`` for any other text."""
    try:
        return str(UUID(text or ""))
    except ValueError:
        return None
