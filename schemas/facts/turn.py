"""Facts of the family ``turn``: the concern ``turns`` is their only writer.

One per accepted input of its four machines: turn_execution, the session's slot for a turn, the
realtime product turn, the model baseline. Each has the input's parameters and the name of the row
that fired. ``run`` of the envelope is the row's ``run_id`` where it has one, and then required.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.calls import ForkedRun, RequestedCall, RunEnvironment
from rookery.schemas.envelope import Fact, HistoryRestart, TransitionFact
from rookery.schemas.integers import Unsigned
from rookery.schemas.machines.turn import (
    ContentShape,
    ExecutionKind,
    KeepAliveRequest,
    LlmRetryFailureKind,
    PendingContinuation,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)
from rookery.schemas.run import RunRequest, RunResult

__all__ = ["TURN_FACTS", "TurnFact"]


class _TurnTransition(TransitionFact, frozen=True, kw_only=True):
    step: Unsigned | UnsetType = UNSET
    """Of the last fact of a driver's step: its number."""


class _OfRun(_TurnTransition, frozen=True, kw_only=True):
    run: str


# --- turn_execution: starts -----------------------------------------------------------------------


class _Start(_OfRun, frozen=True, kw_only=True):
    direct: bool = False
    """Nobody had prepared the session for the run: it is bound until its turn has ended."""


class Started(_Start, frozen=True, kw_only=True, tag="turn.started.v1"):
    """The run's driver may begin; what the turn before left is forgotten."""

    primitive_kind_in: TurnPrimitiveKind
    shape: ContentShape
    vision: bool
    image_results: bool
    max_retries: Unsigned
    offer: RunEnvironment | UnsetType = UNSET
    """What the run is given, where a node drives it; unset: somebody outside takes its steps."""
    request: RunRequest | UnsetType = UNSET
    """Of a driven run: with its offer all there is to know in order to run it again."""
    request_blob: str | UnsetType = UNSET
    """As of ``session.input_accepted``."""
    forked: ForkedRun | UnsetType = UNSET
    """Where it begins, if it goes on from the middle of another run."""


class ImmediateAppendStarted(
    _Start, frozen=True, kw_only=True, tag="turn.immediate_append_started.v1"
):
    """Something is appended to the conversation and no driver is asked."""


class ImmediateContextStarted(
    _Start, frozen=True, kw_only=True, tag="turn.immediate_context_started.v1"
):
    """Something is appended to the context and no driver is asked."""


class PrimitiveApplied(_TurnTransition, frozen=True, kw_only=True, tag="turn.primitive_applied.v1"):
    """What was started stands in the conversation; an immediate turn ends with it."""


# --- turn_execution: steps ------------------------------------------------------------------------


class ToolCallsReturned(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.tool_calls_returned.v1"
):
    """The driver wants this many tools; with none of them the boundary comes next."""

    tool_count: Unsigned
    calls: tuple[RequestedCall, ...] = ()
    """What it wants of them, where a node drives the run."""


class TerminalReturned(_TurnTransition, frozen=True, kw_only=True, tag="turn.terminal_returned.v1"):
    """The driver wants no more tools."""


class OpsRegistered(_TurnTransition, frozen=True, kw_only=True, tag="turn.ops_registered.v1"):
    """These operations are under way, in place of any before; the barrier ones are waited for."""

    op_refs: tuple[str, ...]
    barrier_ids: tuple[str, ...]
    timer_ms: Unsigned | UnsetType = UNSET
    """A time of the program's that may come first, where a node drives the run."""


class OpsBarrierSatisfied(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.ops_barrier_satisfied.v1"
):
    """All operations that were waited for have come to their end: exactly these."""

    operation_ids: tuple[str, ...]


class ToolCallsResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.tool_calls_resolved.v1"
):
    """The driver has been given the results."""

    passed_ms: tuple[Unsigned, ...] | UnsetType = UNSET
    """Set if the program waited for a time, too: how far its clock went on, each time one came
    first, and at last with the results."""


class BoundaryApplied(_TurnTransition, frozen=True, kw_only=True, tag="turn.boundary_applied.v1"):
    """What may only change between two steps has changed; the driver goes on if it may."""


class BoundaryCompleted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.boundary_completed.v1"
):
    """The turn's last boundary was applied."""


class CallbackPending(_TurnTransition, frozen=True, kw_only=True, tag="turn.callback_pending.v1"):
    """The operations are somebody else's to finish, and the turn does not wait for them."""


# --- turn_execution: extraction -------------------------------------------------------------------


class ExtractionEntered(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_entered.v1"
):
    """The driver's answer is to become structured output, with so many more attempts if need be."""

    max_retries: Unsigned


class ExtractionStarted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_started.v1"
):
    """The driver was asked for structured output."""


class ExtractionValidationPassed(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_validation_passed.v1"
):
    """The structured output fits its schema."""


class ExtractionValidationFailed(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_validation_failed.v1"
):
    """The structured output does not fit; without attempts left the turn completes without it."""

    error: str


class ExtractionFailed(_TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_failed.v1"):
    """There is no structured output and the turn completes without it."""

    error: str


# --- turn_execution: failures, cancellation, limits -----------------------------------------------


class AttemptFailed(_TurnTransition, frozen=True, kw_only=True, tag="turn.attempt_failed.v1"):
    """A call to the model failed; another attempt is due after the delay."""

    failure_kind: LlmRetryFailureKind
    retry_attempt: Unsigned
    max_retries: Unsigned
    selected_delay_ms: Unsigned
    error: str


class RetryRequested(_TurnTransition, frozen=True, kw_only=True, tag="turn.retry_requested.v1"):
    """The delay is over and the model is called again."""

    retry_attempt: Unsigned


class FatallyFailed(_TurnTransition, frozen=True, kw_only=True, tag="turn.fatally_failed.v1"):
    """The turn met a failure no other attempt can mend."""

    cause_kind: TurnTerminalCauseKind
    error: str


class CancelRequested(_TurnTransition, frozen=True, kw_only=True, tag="turn.cancel_requested.v1"):
    """The turn is to end now."""


class BoundaryCancelRequested(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.boundary_cancel_requested.v1"
):
    """The turn is to end at its next boundary."""


class CancellationObserved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.cancellation_observed.v1"
):
    """The driver has stopped because it was told to."""


class CancelledWithoutRun(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.cancelled_without_run.v1"
):
    """There was nothing to cancel."""


class TurnLimitReached(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.turn_limit_reached.v1"
):
    """The driver has taken all the steps it may."""


class BudgetExhausted(_TurnTransition, frozen=True, kw_only=True, tag="turn.budget_exhausted.v1"):
    """The turn's tokens or tool calls are used up."""


class TimeBudgetExceeded(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.time_budget_exceeded.v1"
):
    """The turn's time is used up."""


class _ParkingFact(Fact, frozen=True, kw_only=True):
    run: str


class Parked(_ParkingFact, frozen=True, kw_only=True, tag="turn.parked.v1"):
    """The run waits for somebody and nothing of it is held in memory. Not an end."""

    code: str
    """What for: ``WAITING_FOR_APPROVAL``, ``RECOVERY_REQUIRED`` ..."""
    snapshot_id: str
    snapshot_blob: str
    """Digest of the program's memory in the blob store."""
    waits_for: tuple[str, ...]
    """The operations it waits for."""
    split: bool | UnsetType = UNSET
    """Whether calls of several steps are open: then it goes on when the first has come."""


class Unparked(_ParkingFact, frozen=True, kw_only=True, tag="turn.unparked.v1"):
    """What the run waited for has come; any node may go on with it."""


# --- turn_execution: ends -------------------------------------------------------------------------


class _End(_OfRun, frozen=True, kw_only=True):
    result: RunResult | UnsetType = UNSET
    """Where a node drove the run, and neither if somebody outside did."""
    result_blob: str | UnsetType = UNSET
    """Digest of the result in the blob store, where it is too large to stand here; ``result`` is
    then without its value, its streams and its calls."""
    kept: bool = False
    """Whether what the run did to its session stands; else the session is as it was before."""


class Completed(_End, frozen=True, kw_only=True, tag="turn.completed.v1"):
    """The run's turn is over."""


class Failed(_End, frozen=True, kw_only=True, tag="turn.failed.v1"):
    """The run's turn is over and did not end well."""

    apply_cause: str | None = None
    """What the runtime could not apply, where that was it."""
    apply_message: str | None = None
    outcome: TurnTerminalOutcome
    cause_kind: TurnTerminalCauseKind
    error: str


class Cancelled(_End, frozen=True, kw_only=True, tag="turn.cancelled.v1"):
    """The run's turn is over because somebody wanted it to be."""


class TerminalAcknowledged(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.terminal_acknowledged.v1"
):
    """Whoever waited for the end has seen it; the turn is ready for another."""

    outcome: TurnTerminalOutcome


# --- session_turn_admission -----------------------------------------------------------------------


class SlotProjected(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_projected.v1"):
    """Somebody was told where the slot stands."""


class SlotClaimed(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_claimed.v1"):
    """The slot is held for a turn, or the claim came after the shutdown."""


class SlotClaimAborted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_claim_aborted.v1"
):
    """The turn the slot was held for does not come."""


class SlotBegun(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_begun.v1"):
    """The slot's turn runs, or the start came after the shutdown."""


class SlotResolved(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_resolved.v1"):
    """The slot's turn has its result."""


class SlotFinalized(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_finalized.v1"):
    """The slot's turn is wound up; a deferred shutdown takes place now."""


class SlotInterruptRequested(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_interrupt_requested.v1"
):
    """The slot's turn is to be interrupted; only the first request wakes it."""


class SlotShutdownRequested(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_shutdown_requested.v1"
):
    """The slot takes no more turns, at once or when its turn is wound up."""


class SlotDrained(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_drained.v1"):
    """Whoever waited for the slot when it shut down has been answered."""


class SlotTeardownAuthorized(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_teardown_authorized.v1"
):
    """The session may be taken down."""


class SlotBoundaryCancelAuthorized(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_boundary_cancel_authorized.v1"
):
    """The slot's turn may be asked to end at its next boundary."""


class SlotDispatchResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_dispatch_resolved.v1"
):
    """It was said whether the start may still be dispatched."""


class SlotDispositionResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_disposition_resolved.v1"
):
    """It was said what the admitted turn does: run its content, go on, or nothing."""

    execution_kind_present: bool
    execution_kind: ExecutionKind | None = None
    prompt_trimmed_text_byte_count: Unsigned
    prompt_non_text_block_count: Unsigned
    pending_continuation: PendingContinuation


class SlotKeepAliveResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_keep_alive_resolved.v1"
):
    """It was said what is kept of the turn's wish for keep-alive."""

    keep_alive_request: KeepAliveRequest


class SlotPublicTerminalResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_public_terminal_resolved.v1"
):
    """Somebody was told how the last start ended without a turn."""


# --- realtime_product_turn ------------------------------------------------------------------------


class ProductTurnStarted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_turn_started.v1"
):
    """A realtime turn is in flight."""


class ProductTurnCommitted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_turn_committed.v1"
):
    """The user's part of the realtime turn is complete."""


class ProductOutputStarted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_output_started.v1"
):
    """The first output of the realtime turn was heard."""


class ProductTurnInterrupted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_turn_interrupted.v1"
):
    """The output was cut off; the realtime turn goes on."""


class ProductTurnEnded(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_turn_ended.v1"
):
    """No realtime turn is in flight any more."""


class ProjectionAdvanced(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.projection_advanced.v1"
):
    """The session has moved on from what the realtime side was shown."""

    advanced_at_ms: Unsigned


class ProjectionRefreshed(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.projection_refreshed.v1"
):
    """The realtime side was shown the session as of this time."""

    observed_ms: Unsigned


class ProjectionReset(_TurnTransition, frozen=True, kw_only=True, tag="turn.projection_reset.v1"):
    """The realtime side starts anew from this time."""

    baseline_ms: Unsigned


class ClientInputSubmitted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.client_input_submitted.v1"
):
    """The client has sent something: a connection that closes now is to be taken up again."""


class MidTurnActivitySeen(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.mid_turn_activity_seen.v1"
):
    """The realtime turn is active: a connection that closes now is to be taken up again."""


class TurnTerminationSeen(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.termination_seen.v1"
):
    """The realtime turn is over: a connection may close, and what was deferred is due."""


# --- model_routing --------------------------------------------------------------------------------


class BaselineSet(_TurnTransition, frozen=True, kw_only=True, tag="turn.baseline_set.v1"):
    """The session's model is this one until something else is asked for."""

    model: str
    realtime_capable: bool


class HistoryRestarted(HistoryRestart, frozen=True, kw_only=True, tag="turn.history_restarted.v1"):
    """The session has begun another life, or will; nothing of an earlier turn counts."""


TurnFact = (
    Started
    | ImmediateAppendStarted
    | ImmediateContextStarted
    | PrimitiveApplied
    | ToolCallsReturned
    | TerminalReturned
    | OpsRegistered
    | OpsBarrierSatisfied
    | ToolCallsResolved
    | BoundaryApplied
    | BoundaryCompleted
    | CallbackPending
    | ExtractionEntered
    | ExtractionStarted
    | ExtractionValidationPassed
    | ExtractionValidationFailed
    | ExtractionFailed
    | AttemptFailed
    | RetryRequested
    | FatallyFailed
    | CancelRequested
    | BoundaryCancelRequested
    | CancellationObserved
    | CancelledWithoutRun
    | TurnLimitReached
    | BudgetExhausted
    | TimeBudgetExceeded
    | Parked
    | Unparked
    | Completed
    | Failed
    | Cancelled
    | TerminalAcknowledged
    | SlotProjected
    | SlotClaimed
    | SlotClaimAborted
    | SlotBegun
    | SlotResolved
    | SlotFinalized
    | SlotInterruptRequested
    | SlotShutdownRequested
    | SlotDrained
    | SlotTeardownAuthorized
    | SlotBoundaryCancelAuthorized
    | SlotDispatchResolved
    | SlotDispositionResolved
    | SlotKeepAliveResolved
    | SlotPublicTerminalResolved
    | ProductTurnStarted
    | ProductTurnCommitted
    | ProductOutputStarted
    | ProductTurnInterrupted
    | ProductTurnEnded
    | ProjectionAdvanced
    | ProjectionRefreshed
    | ProjectionReset
    | ClientInputSubmitted
    | MidTurnActivitySeen
    | TurnTerminationSeen
    | BaselineSet
    | HistoryRestarted
)
TURN_FACTS = TurnFact
