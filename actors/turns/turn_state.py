"""What turn_execution keeps of a turn, and what must always hold of it.

Data only: which steps there are is ``machine``'s, what they make of a turn is ``steps``'.
"""

from __future__ import annotations

from typing import Final

import msgspec

from rookery.actors.kernel.machines.session_host import SessionHost
from rookery.schemas.machines.turn import (
    ContentShape,
    LlmRetryFailureKind,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)

__all__ = [
    "APPLYING",
    "CALLING",
    "CANCELLED",
    "CANCELLING",
    "COMPLETED",
    "DRAINING",
    "EXTRACTING",
    "FAILED",
    "NOTHING",
    "READY",
    "RECOVERING",
    "TURN_INVARIANTS",
    "WAITING",
    "Turn",
]

READY, APPLYING, CALLING, WAITING, DRAINING, EXTRACTING = tuple(TurnPhase)[:6]
RECOVERING, CANCELLING, COMPLETED, FAILED, CANCELLED = tuple(TurnPhase)[6:]

NOTHING: Final[frozenset[str]] = frozenset()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A session's turn, or what the last one left."""

    phase: TurnPhase = READY
    primitive_kind: TurnPrimitiveKind | None = None
    admitted_content_shape: ContentShape | None = None
    vision_enabled: bool = False
    image_tool_results_enabled: bool = False
    tool_calls_pending: int = 0
    pending_op_refs: frozenset[str] = NOTHING
    barrier_operation_ids: frozenset[str] = NOTHING
    """Those the turn waits for; they need not be among ``pending_op_refs``."""
    has_barrier_ops: bool = False
    barrier_satisfied: bool = False
    """Kept from one step to the next: only registering operations asks anew."""
    boundary_count: int = 0
    cancel_after_boundary: bool = False
    terminal_outcome: TurnTerminalOutcome | None = None
    terminal_cause_kind: TurnTerminalCauseKind | None = None
    last_runtime_apply_failure_cause: str | None = None
    last_runtime_apply_failure_message: str | None = None
    extraction_attempts: int = 0
    max_extraction_retries: int = 0
    llm_retry_attempt: int = 0
    llm_retry_max_retries: int = 0
    llm_retry_selected_delay_ms: int = 0
    llm_retry_last_failure_kind: LlmRetryFailureKind | None = None
    host: SessionHost = SessionHost()


# --- invariants -----------------------------------------------------------------------------------


def the_flag_says_whether_there_are_barrier_ops(turn: Turn) -> bool:
    return turn.has_barrier_ops == bool(turn.barrier_operation_ids)


def a_satisfied_barrier_waits_for_nothing(turn: Turn) -> bool:
    return not (turn.barrier_satisfied and turn.barrier_operation_ids)


def an_ended_turn_has_an_outcome(turn: Turn) -> bool:
    return not turn.phase.is_terminal or turn.terminal_outcome is not None


def a_failed_turn_has_a_known_cause(turn: Turn) -> bool:
    return turn.phase is not FAILED or turn.terminal_cause_kind not in (
        None,
        TurnTerminalCauseKind.UNKNOWN,
    )


TURN_INVARIANTS = (
    the_flag_says_whether_there_are_barrier_ops,
    a_satisfied_barrier_waits_for_nothing,
    an_ended_turn_has_an_outcome,
    a_failed_turn_has_a_known_cause,
)
