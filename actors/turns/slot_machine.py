"""session_turn_admission: the one slot a session has for a turn, and how it shuts down.

A turn claims the slot, runs in it and is wound up. A shutdown waits for a running turn; then
nobody gets in any more, and the session may be taken down once those who waited were answered.
What comes too late is not refused but told that the session is archived. What the turn does in the
slot is ``machine``'s; a session's queue and its runs are admission's.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect, put
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import ExecutionKind, KeepAliveRequest, PendingContinuation

__all__ = ["SLOT", "PublicTerminal", "SlotPhase", "TurnSlot"]


class SlotPhase(StrEnum):
    """ShuttingDown is final."""

    IDLE = "Idle"
    ADMITTED = "Admitted"
    RUNNING = "Running"
    COMPLETING = "Completing"
    SHUTTING_DOWN = "ShuttingDown"


IDLE, ADMITTED, RUNNING, COMPLETING, SHUTTING_DOWN = SlotPhase


class PublicTerminal(StrEnum):
    """How a start ended without a turn."""

    NO_PENDING_BOUNDARY = "NoPendingBoundary"


NO_PENDING = PublicTerminal.NO_PENDING_BOUNDARY


class TurnSlot(msgspec.Struct, frozen=True, kw_only=True):
    """The slot."""

    phase: SlotPhase = IDLE
    interrupt_pending: bool = False
    shutdown_pending: bool = False
    admission_drain_pending: bool = False
    """Those who waited when it shut down are still to be answered."""
    last_public_terminal: PublicTerminal | None = None

    @property
    def is_active(self) -> bool:
        return self.phase in (ADMITTED, RUNNING, COMPLETING)


# --- effects --------------------------------------------------------------------------------------


class TurnAdmissionProjected(RowEffect, frozen=True, kw_only=True):
    """Where the slot stands now."""

    phase: SlotPhase
    interrupt_pending: bool
    shutdown_pending: bool
    is_active: bool


class TurnAdmissionShutdownTerminalResolved(RowEffect, frozen=True, kw_only=True):
    """Whoever asked came after the shutdown."""

    terminal: str


class TurnInterruptRequested(RowEffect, frozen=True, kw_only=True):
    """The turn is to be interrupted, and woken for it unless it was before."""

    wake: bool


class PendingAdmissionDrainRequested(RowEffect, frozen=True, kw_only=True):
    """Those who wait for the slot are to be answered; asked exactly once."""


class SessionTeardownAuthorized(RowEffect, frozen=True, kw_only=True):
    """The session may be taken down."""


class CancelAfterBoundaryAuthorized(RowEffect, frozen=True, kw_only=True):
    """The turn may be asked to end at its next boundary."""


class StartTurnDispatchResolved(RowEffect, frozen=True, kw_only=True):
    """Whether the start is still wanted."""

    authorization: str


class StartTurnDispositionResolved(RowEffect, frozen=True, kw_only=True):
    """What the admitted turn does."""

    disposition: str


class StartTurnPublicTerminalResolved(RowEffect, frozen=True, kw_only=True):
    """How the last start ended without a turn."""

    terminal: PublicTerminal


class RuntimeKeepAliveResolved(RowEffect, frozen=True, kw_only=True):
    """What is kept of the wish for keep-alive; preserving is not disabling."""

    decision: str


def projected(slot: TurnSlot, _: object) -> TurnAdmissionProjected:
    return TurnAdmissionProjected(
        phase=slot.phase,
        interrupt_pending=slot.interrupt_pending,
        shutdown_pending=slot.shutdown_pending,
        is_active=slot.is_active,
    )


ARCHIVED = TurnAdmissionShutdownTerminalResolved(terminal="SessionArchived")
DRAIN = PendingAdmissionDrainRequested()
RUN_CONTENT = StartTurnDispositionResolved(disposition="RunContentTurn")
RUN_PENDING = StartTurnDispositionResolved(disposition="RunPending")
NOTHING_TO_RUN = (
    StartTurnDispositionResolved(disposition="NoPendingBoundary"),
    StartTurnPublicTerminalResolved(terminal=NO_PENDING),
)


# --- when rows hold -------------------------------------------------------------------------------


def explicit(asked: facts.SlotDispositionResolved, kind: ExecutionKind) -> bool:
    return asked.execution_kind_present and asked.execution_kind is kind


def prompted(asked: facts.SlotDispositionResolved) -> bool:
    return asked.prompt_trimmed_text_byte_count > 0 or asked.prompt_non_text_block_count > 0


def resumes(asked: facts.SlotDispositionResolved) -> bool:
    """Going on is asked for; the prompt does not matter then."""
    return explicit(asked, ExecutionKind.RESUME_PENDING)


def unprompted(asked: facts.SlotDispositionResolved) -> bool:
    return not asked.execution_kind_present and not prompted(asked)


def pending(asked: facts.SlotDispositionResolved) -> bool:
    return asked.pending_continuation is PendingContinuation.RUN_PENDING


def keep_alive(name: str, request: KeepAliveRequest, decision: str) -> Row:
    return Row(
        name,
        "resolve_runtime_keep_alive",
        lambda slot, asked: slot.phase is ADMITTED and asked.keep_alive_request is request,
        effects=(RuntimeKeepAliveResolved(decision=decision),),
    )


# --- the machine ----------------------------------------------------------------------------------

_DISPOSITION = "resolve_start_turn_disposition"
_INPUTS = {
    "project_turn_admission": Input(facts.SlotProjected),
    "claim_turn": Input(facts.SlotClaimed),
    "abort_claim": Input(facts.SlotClaimAborted),
    "begin_turn": Input(facts.SlotBegun),
    "resolve_turn": Input(facts.SlotResolved),
    "finalize_turn": Input(facts.SlotFinalized),
    "request_interrupt": Input(facts.SlotInterruptRequested),
    "request_shutdown": Input(facts.SlotShutdownRequested),
    "resolve_pending_admission_drained": Input(facts.SlotDrained),
    "authorize_session_teardown": Input(facts.SlotTeardownAuthorized),
    "authorize_cancel_after_boundary": Input(facts.SlotBoundaryCancelAuthorized),
    "authorize_start_turn_dispatch": Input(facts.SlotDispatchResolved),
    _DISPOSITION: Input(
        facts.SlotDispositionResolved,
        (
            "execution_kind_present",
            "execution_kind",
            "prompt_trimmed_text_byte_count",
            "prompt_non_text_block_count",
            "pending_continuation",
        ),
    ),
    "resolve_runtime_keep_alive": Input(facts.SlotKeepAliveResolved, ("keep_alive_request",)),
    "resolve_last_start_turn_public_terminal": Input(facts.SlotPublicTerminalResolved),
}
shut_down: dict[str, Any] = {
    "phase": SHUTTING_DOWN,
    "interrupt_pending": False,
    "admission_drain_pending": True,
}

# fmt: off
_ROWS = (
    Row("ProjectTurnAdmission", "project_turn_admission",
        lambda *_: True,
        effects=(projected,)),
    Row("ClaimTurn", "claim_turn",
        lambda s, _: s.phase is IDLE,
        put(phase=ADMITTED, interrupt_pending=False, shutdown_pending=False,
            last_public_terminal=None),
        (projected,)),
    Row("ClaimTurnShuttingDown", "claim_turn",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    Row("AbortClaim", "abort_claim",
        lambda s, _: s.phase is ADMITTED,
        put(phase=IDLE, interrupt_pending=False, shutdown_pending=False),
        (projected,)),
    Row("AbortClaimShuttingDown", "abort_claim",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(projected,)),
    Row("BeginTurn", "begin_turn",
        lambda s, _: s.phase is ADMITTED,
        put(phase=RUNNING),
        (projected,)),
    Row("BeginTurnShuttingDown", "begin_turn",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    Row("ResolveTurn", "resolve_turn",
        lambda s, _: s.phase is RUNNING,
        put(phase=COMPLETING),
        (projected,)),
    Row("FinalizeTurnToShutdown", "finalize_turn",
        lambda s, _: s.phase is COMPLETING and s.shutdown_pending,
        put(**shut_down),
        (DRAIN, projected)),
    Row("FinalizeTurnToIdle", "finalize_turn",
        lambda s, _: s.phase is COMPLETING and not s.shutdown_pending,
        put(phase=IDLE, interrupt_pending=False, shutdown_pending=False),
        (projected,)),
    Row("RequestInterruptFirst", "request_interrupt",
        lambda s, _: s.phase in (ADMITTED, RUNNING) and not s.interrupt_pending,
        put(interrupt_pending=True),
        (TurnInterruptRequested(wake=True), projected)),
    Row("RequestInterruptDuplicate", "request_interrupt",
        lambda s, _: s.phase in (ADMITTED, RUNNING) and s.interrupt_pending,
        effects=(TurnInterruptRequested(wake=False), projected)),
    Row("RequestShutdownImmediate", "request_shutdown",
        lambda s, _: s.phase in (IDLE, ADMITTED),
        put(**shut_down, shutdown_pending=True),
        (DRAIN, projected)),
    Row("RequestShutdownDeferred", "request_shutdown",
        lambda s, _: s.phase in (RUNNING, COMPLETING),
        put(shutdown_pending=True),
        (projected,)),
    Row("RequestShutdownAlreadyShuttingDown", "request_shutdown",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(projected,)),
    Row("ResolvePendingAdmissionDrained", "resolve_pending_admission_drained",
        lambda s, _: s.phase is SHUTTING_DOWN and s.admission_drain_pending,
        put(admission_drain_pending=False),
        (projected,)),
    Row("AuthorizeSessionTeardown", "authorize_session_teardown",
        lambda s, _: s.phase is SHUTTING_DOWN and not s.admission_drain_pending,
        effects=(SessionTeardownAuthorized(),)),
    Row("AuthorizeCancelAfterBoundary", "authorize_cancel_after_boundary",
        lambda s, _: s.phase in (ADMITTED, RUNNING),
        effects=(CancelAfterBoundaryAuthorized(),)),
    Row("AuthorizeStartTurnDispatchAdmitted", "authorize_start_turn_dispatch",
        lambda s, _: s.phase is ADMITTED,
        effects=(StartTurnDispatchResolved(authorization="Authorized"),)),
    Row("AuthorizeStartTurnDispatchShuttingDown", "authorize_start_turn_dispatch",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(StartTurnDispatchResolved(authorization="Cancelled"),)),
    Row("ResolveDispositionContentTurn", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and explicit(a, ExecutionKind.CONTENT_TURN),
        put(last_public_terminal=None),
        (RUN_CONTENT,)),
    Row("ResolveDispositionResumePendingWithBoundary", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and resumes(a) and pending(a),
        put(last_public_terminal=None),
        (RUN_PENDING,)),
    Row("ResolveDispositionResumePendingWithoutBoundary", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and resumes(a) and not pending(a),
        put(last_public_terminal=NO_PENDING),
        NOTHING_TO_RUN),
    Row("ResolveDispositionDirectPrompt", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and not a.execution_kind_present and prompted(a),
        put(last_public_terminal=None),
        (RUN_CONTENT,)),
    Row("ResolveDispositionDirectPending", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and unprompted(a) and pending(a),
        put(last_public_terminal=None),
        (RUN_PENDING,)),
    Row("ResolveDispositionDirectNoPending", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and unprompted(a) and not pending(a),
        put(last_public_terminal=NO_PENDING),
        NOTHING_TO_RUN),
    Row("ResolveStartTurnDispositionShuttingDown", _DISPOSITION,
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    keep_alive("ResolveRuntimeKeepAliveEnable", KeepAliveRequest.ENABLE, "PersistEnabled"),
    keep_alive("ResolveRuntimeKeepAliveDisable", KeepAliveRequest.DISABLE, "PersistDisabled"),
    keep_alive("ResolveRuntimeKeepAlivePreserve", KeepAliveRequest.PRESERVE, "PreserveExisting"),
    Row("ResolveRuntimeKeepAliveShuttingDown", "resolve_runtime_keep_alive",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    Row("ResolveLastStartTurnPublicTerminal", "resolve_last_start_turn_public_terminal",
        lambda s, _: s.last_public_terminal is NO_PENDING,
        effects=(StartTurnPublicTerminalResolved(terminal=NO_PENDING),)),
)
# fmt: on


def shutdown_phase_is_not_active(slot: TurnSlot) -> bool:
    return slot.phase is not SHUTTING_DOWN or not slot.is_active


def drain_obligation_only_while_shutting_down(slot: TurnSlot) -> bool:
    return not slot.admission_drain_pending or slot.phase is SHUTTING_DOWN


SLOT = Machine(
    "session_turn_admission",
    handle="SessionTurnAdmissionHandle",
    phases=tuple(SlotPhase),
    initial=TurnSlot(),
    inputs=_INPUTS,
    rows=_ROWS,
    invariants=(shutdown_phase_is_not_active, drain_obligation_only_while_shutting_down),
)
