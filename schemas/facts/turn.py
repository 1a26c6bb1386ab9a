"""Facts of the family ``turn``, written by the decider of turns.

The family has four machines: turn_execution, the session's slot for a turn, the realtime product
turn, the model baseline. Each writes one fact per accepted input: the input's parameters and the
name of the row that fired. ``run`` of the envelope is the row's ``run_id``, required where the row
has one.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from rookery.schemas.agents import ModelUsage, ParentRun
from rookery.schemas.calls import ForkedRun, PinnedHook, RequestedCall, RunEnvironment, ToolFault
from rookery.schemas.envelope import Fact, HistoryRestart, TransitionFact
from rookery.schemas.facts.code import CodeFact
from rookery.schemas.facts.conversation import ConversationFact
from rookery.schemas.facts.hook import HookFact
from rookery.schemas.facts.model import ModelFact
from rookery.schemas.facts.tool import ToolFact
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
from rookery.schemas.protection.rights import Rights
from rookery.schemas.run import RunOutput, RunRequest, RunResult
from rookery.schemas.scalars import Unsigned

__all__ = ["RUN_FACTS", "TURN_FACTS", "TurnFact"]


class _TurnTransition(TransitionFact, frozen=True, kw_only=True):
    step: Unsigned | UnsetType = UNSET
    """Number of the driver's step, in the last fact of that step."""


class _OfRun(_TurnTransition, frozen=True, kw_only=True):
    run: str


# --- turn_execution: starts -----------------------------------------------------------------------


class _Start(_OfRun, frozen=True, kw_only=True):
    direct: bool = False
    """The session was not prepared for the run: it is bound until the turn has ended."""


class Started(_Start, frozen=True, kw_only=True, tag="turn.started.v1"):
    """The run's driver may begin; the state of the previous turn is cleared."""

    primitive_kind_in: TurnPrimitiveKind
    shape: ContentShape
    vision: bool
    image_results: bool
    max_retries: Unsigned
    offer: RunEnvironment | UnsetType = UNSET
    """Environment of a run that a node drives; unset if a client takes the turn's steps."""
    request: RunRequest | UnsetType = UNSET
    """Request of a driven run: with ``offer`` it suffices to execute the run again."""
    request_blob: str | UnsetType = UNSET
    """See ``session.input_accepted``."""
    forked: ForkedRun | UnsetType = UNSET
    """Where the run continues another run, if it was forked."""
    rights: tuple[Rights, ...] | UnsetType = field(default=UNSET, name="grants")
    """What the run may call, as known when it started; unset if nothing restricts it."""


class ImmediateAppendStarted(
    _Start, frozen=True, kw_only=True, tag="turn.immediate_append_started.v1"
):
    """Content is appended to the conversation without a driver."""


class ImmediateContextStarted(
    _Start, frozen=True, kw_only=True, tag="turn.immediate_context_started.v1"
):
    """Content is appended to the context without a driver."""


class PrimitiveApplied(_TurnTransition, frozen=True, kw_only=True, tag="turn.primitive_applied.v1"):
    """The started content is in the conversation; an immediate turn ends with it."""


# --- turn_execution: steps ------------------------------------------------------------------------


class ToolCallsReturned(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.tool_calls_returned.v1"
):
    """The driver requests this many tool calls; after none of them the boundary follows."""

    tool_count: Unsigned
    calls: tuple[RequestedCall, ...] = ()
    """The requested calls of a run that a node drives."""


class TerminalReturned(_TurnTransition, frozen=True, kw_only=True, tag="turn.terminal_returned.v1"):
    """The driver requests no more tool calls."""


class OpsRegistered(_TurnTransition, frozen=True, kw_only=True, tag="turn.ops_registered.v1"):
    """These operations are in flight and replace earlier ones; the turn waits for the barrier's."""

    op_refs: tuple[str, ...]
    barrier_ids: tuple[str, ...]
    timer_ms: Unsigned | UnsetType = UNSET
    """A timer of the program that may fire first, in a run that a node drives."""


class OpsBarrierSatisfied(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.ops_barrier_satisfied.v1"
):
    """The operations of the barrier have ended: exactly these."""

    operation_ids: tuple[str, ...]


class ToolCallsResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.tool_calls_resolved.v1"
):
    """The driver has the results."""

    passed_ms: tuple[Unsigned, ...] | UnsetType = UNSET
    """Set if the program waited for timers, too: by how much its clock advanced each time a timer
    fired first, and finally with the results."""


class BoundaryApplied(_TurnTransition, frozen=True, kw_only=True, tag="turn.boundary_applied.v1"):
    """Changes that are allowed only between two steps are applied; the driver may continue."""


class BoundaryCompleted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.boundary_completed.v1"
):
    """The turn's last boundary was applied."""


class CallbackPending(_TurnTransition, frozen=True, kw_only=True, tag="turn.callback_pending.v1"):
    """A client finishes the operations; the turn does not wait for them."""


# --- turn_execution: extraction -------------------------------------------------------------------


class ExtractionEntered(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_entered.v1"
):
    """The driver's answer is to become structured output, with this many retries."""

    max_retries: Unsigned


class ExtractionStarted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_started.v1"
):
    """The driver is asked for structured output."""


class ExtractionValidationPassed(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_validation_passed.v1"
):
    """The structured output matches its schema."""


class ExtractionValidationFailed(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_validation_failed.v1"
):
    """The structured output does not match; without retries left the turn completes without it."""

    error: str


class ExtractionFailed(_TurnTransition, frozen=True, kw_only=True, tag="turn.extraction_failed.v1"):
    """The turn completes without structured output."""

    error: str


# --- turn_execution: failures, cancellation, limits -----------------------------------------------


class AttemptFailed(_TurnTransition, frozen=True, kw_only=True, tag="turn.attempt_failed.v1"):
    """A call to the model failed; a retry is due after the delay."""

    failure_kind: LlmRetryFailureKind
    retry_attempt: Unsigned
    max_retries: Unsigned
    selected_delay_ms: Unsigned
    error: str


class RetryRequested(_TurnTransition, frozen=True, kw_only=True, tag="turn.retry_requested.v1"):
    """The delay is over and the model is called again."""

    retry_attempt: Unsigned


class FatallyFailed(_TurnTransition, frozen=True, kw_only=True, tag="turn.fatally_failed.v1"):
    """The turn met a failure that a retry does not repair."""

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
    """The driver has stopped because of the cancellation."""


class CancelledWithoutRun(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.cancelled_without_run.v1"
):
    """There was nothing to cancel."""


class TurnLimitReached(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.turn_limit_reached.v1"
):
    """The driver has taken its last permitted step."""


class BudgetExhausted(_TurnTransition, frozen=True, kw_only=True, tag="turn.budget_exhausted.v1"):
    """The turn's budget of tokens or tool calls is spent."""


class TimeBudgetExceeded(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.time_budget_exceeded.v1"
):
    """The turn's time budget is spent."""


class _ParkingFact(Fact, frozen=True, kw_only=True):
    run: str


class Parked(_ParkingFact, frozen=True, kw_only=True, tag="turn.parked.v1"):
    """The run waits outside of the memory of a node. The run has not ended."""

    code: str
    """The reason: ``WAITING_FOR_APPROVAL``, ``RECOVERY_REQUIRED`` ..."""
    snapshot_id: str
    snapshot_blob: str
    """Digest of the program's memory in the blob store; empty if the run is to be repeated from its
    facts."""
    waits_for: tuple[str, ...]
    """Ids of the operations the run waits for."""
    split: bool | UnsetType = UNSET
    """Whether calls of several steps are open: then the first call that ends resumes the run."""
    output: RunOutput | UnsetType = UNSET
    """What the run has printed so far, if anything."""
    output_blob: str | UnsetType = UNSET
    """Digest of the same in the blob store, if it is long."""
    hook: str | UnsetType = UNSET
    """The hook that has failed and interrupted the run, which waits for no operation then."""
    until_ms: Unsigned | UnsetType = UNSET
    """When its model may be asked again, if it waits for that."""
    lease: str | UnsetType = UNSET
    """The key of the lease whose credential its model needs, if it waits for that."""


class Unparked(_ParkingFact, frozen=True, kw_only=True, tag="turn.unparked.v1"):
    """An outcome the run waited for is committed, or the hook that has interrupted it may be
    invoked again; any node may resume the run."""

    hook: str | UnsetType = UNSET
    """The hook that had interrupted it."""

    resolved_by: str | UnsetType = UNSET
    """The operator who resolved what it waited for, if it waited for one."""
    failed: ToolFault | UnsetType = UNSET
    """Why the operator ends the run."""
    hooks: tuple[PinnedHook, ...] | UnsetType = UNSET
    """The hooks of the run from now on, if they are others than before."""
    package_fingerprint: str | UnsetType = UNSET
    """Of its package then."""


# --- turn_execution: ends -------------------------------------------------------------------------


class _End(_OfRun, frozen=True, kw_only=True):
    result: RunResult | UnsetType = UNSET
    """Result of a run that a node drove; otherwise neither this nor ``result_blob`` is set."""
    result_blob: str | UnsetType = UNSET
    """Digest of the result in the blob store, if it is too large for a fact; ``result`` then has no
    value, no streams and no calls."""
    kept: bool = False
    """Whether the run's changes to its session are valid; otherwise the session is as before."""
    withheld: RunResult | UnsetType = UNSET
    """The result of the program, if a hook leaves it to the record alone."""
    withheld_blob: str | UnsetType = UNSET
    """Digest of the same in the blob store, if it is too large for a fact."""
    reply_to: tuple[str, ...] | UnsetType = UNSET
    """Reply subjects that get the result because of this fact; unset in facts of older versions,
    whose results the session sent."""
    item_id: str | UnsetType = UNSET
    """The item of a peer that the run has handled, if it did."""
    parent: ParentRun | UnsetType = UNSET
    """The call of another run that this one answers, if it does."""
    child_usage: ModelUsage | UnsetType = UNSET
    """What the children of the run have used of models."""


class Completed(_End, frozen=True, kw_only=True, tag="turn.completed.v1"):
    """The run's turn completed."""


class Failed(_End, frozen=True, kw_only=True, tag="turn.failed.v1"):
    """The run's turn failed."""

    apply_cause: str | None = None
    """The change the runtime failed to apply, if that was the cause."""
    apply_message: str | None = None
    outcome: TurnTerminalOutcome
    cause_kind: TurnTerminalCauseKind
    error: str


class Cancelled(_End, frozen=True, kw_only=True, tag="turn.cancelled.v1"):
    """The run's turn was cancelled."""


class TerminalAcknowledged(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.terminal_acknowledged.v1"
):
    """The waiting client has seen the end; the next turn may start."""

    outcome: TurnTerminalOutcome


# --- session_turn_admission -----------------------------------------------------------------------


class SlotProjected(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_projected.v1"):
    """The state of the slot was queried."""


class SlotClaimed(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_claimed.v1"):
    """The slot is reserved for a turn, or the reservation came after the shutdown."""


class SlotClaimAborted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_claim_aborted.v1"
):
    """The turn the slot was reserved for will not start."""


class SlotBegun(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_begun.v1"):
    """The slot's turn runs, or the start came after the shutdown."""


class SlotResolved(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_resolved.v1"):
    """The slot's turn has its result."""


class SlotFinalized(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_finalized.v1"):
    """The slot's turn is cleaned up; a deferred shutdown takes place now."""


class SlotInterruptRequested(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_interrupt_requested.v1"
):
    """The slot's turn is to be interrupted; only the first request wakes the turn."""


class SlotShutdownRequested(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_shutdown_requested.v1"
):
    """The slot takes no more turns, now or after its turn is cleaned up."""


class SlotDrained(_TurnTransition, frozen=True, kw_only=True, tag="turn.slot_drained.v1"):
    """The clients that waited for the slot at its shutdown have a reply."""


class SlotTeardownAuthorized(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_teardown_authorized.v1"
):
    """The session may be destroyed."""


class SlotBoundaryCancelAuthorized(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_boundary_cancel_authorized.v1"
):
    """The slot's turn may be asked to end at its next boundary."""


class SlotDispatchResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_dispatch_resolved.v1"
):
    """The machine resolved whether the start may still be dispatched."""


class SlotDispositionResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_disposition_resolved.v1"
):
    """The machine resolved what the admitted turn does: run its content, continue, or nothing."""

    execution_kind_present: bool
    execution_kind: ExecutionKind | None = None
    prompt_trimmed_text_byte_count: Unsigned
    prompt_non_text_block_count: Unsigned
    pending_continuation: PendingContinuation


class SlotKeepAliveResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_keep_alive_resolved.v1"
):
    """The machine resolved the turn's request for keep-alive."""

    keep_alive_request: KeepAliveRequest


class SlotPublicTerminalResolved(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.slot_public_terminal_resolved.v1"
):
    """The machine reported how the last start ended without a turn."""


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
    """The realtime turn produced its first output."""


class ProductTurnInterrupted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_turn_interrupted.v1"
):
    """The output was interrupted; the realtime turn continues."""


class ProductTurnEnded(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.product_turn_ended.v1"
):
    """The session has no realtime turn in flight."""


class ProjectionAdvanced(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.projection_advanced.v1"
):
    """The session has advanced past the projection of the realtime side."""

    advanced_at_ms: Unsigned


class ProjectionRefreshed(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.projection_refreshed.v1"
):
    """The realtime side has the session's projection as of this time."""

    observed_ms: Unsigned


class ProjectionReset(_TurnTransition, frozen=True, kw_only=True, tag="turn.projection_reset.v1"):
    """The realtime side starts over at this time."""

    baseline_ms: Unsigned


class ClientInputSubmitted(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.client_input_submitted.v1"
):
    """The client sent input: a connection that closes now is to be resumed."""


class MidTurnActivitySeen(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.mid_turn_activity_seen.v1"
):
    """The realtime turn is active: a connection that closes now is to be resumed."""


class TurnTerminationSeen(
    _TurnTransition, frozen=True, kw_only=True, tag="turn.termination_seen.v1"
):
    """The realtime turn is over: a connection may close, and deferred work is due."""


# --- model_routing --------------------------------------------------------------------------------


class BaselineSet(_TurnTransition, frozen=True, kw_only=True, tag="turn.baseline_set.v1"):
    """The session uses this model until another one is chosen."""

    model: str
    realtime_capable: bool


class HistoryRestarted(HistoryRestart, frozen=True, kw_only=True, tag="turn.history_restarted.v1"):
    """The session begins a new generation; its earlier turns are void."""


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
RUN_FACTS = TurnFact | ToolFact | HookFact | ModelFact | ConversationFact | CodeFact
"""What the messages of the entity ``turn`` contain: its runs, with their calls and models."""
