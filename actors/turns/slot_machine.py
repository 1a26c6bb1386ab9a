"""session_turn_admission: the one slot a session has for a turn, and its shutdown.

A turn claims the slot, runs in it and releases it. A shutdown waits for a running turn; then the
slot accepts no other, and the session may be torn down once the waiting starts are answered. A
later start is answered with "archived" and not refused.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from rookery.actors.kernel.machines import (
    Machine,
    MachineInput,
    Transition,
    TransitionEffect,
    set_fields,
)
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
    """The starts that waited at the shutdown must still be answered."""
    last_public_terminal: PublicTerminal | None = None

    @property
    def is_active(self) -> bool:
        return self.phase in (ADMITTED, RUNNING, COMPLETING)


# --- effects --------------------------------------------------------------------------------------


class TurnAdmissionProjected(TransitionEffect, frozen=True, kw_only=True):
    """The slot's present phase."""

    phase: SlotPhase
    interrupt_pending: bool
    shutdown_pending: bool
    is_active: bool


class TurnAdmissionShutdownTerminalResolved(TransitionEffect, frozen=True, kw_only=True):
    """A start arrived after the shutdown."""

    terminal: str


class TurnInterruptRequested(TransitionEffect, frozen=True, kw_only=True):
    """Interrupt the turn, and wake it unless it was woken before."""

    wake: bool


class PendingAdmissionDrainRequested(TransitionEffect, frozen=True, kw_only=True):
    """Answer the starts that wait for the slot; requested exactly once."""


class SessionTeardownAuthorized(TransitionEffect, frozen=True, kw_only=True):
    """The session may be torn down."""


class CancelAfterBoundaryAuthorized(TransitionEffect, frozen=True, kw_only=True):
    """The turn may be asked to end at its next boundary."""


class StartTurnDispatchResolved(TransitionEffect, frozen=True, kw_only=True):
    """Whether the start is still requested."""

    authorization: str


class StartTurnDispositionResolved(TransitionEffect, frozen=True, kw_only=True):
    """What the admitted turn does."""

    disposition: str


class StartTurnPublicTerminalResolved(TransitionEffect, frozen=True, kw_only=True):
    """How the last start ended without a turn."""

    terminal: PublicTerminal


class RuntimeKeepAliveResolved(TransitionEffect, frozen=True, kw_only=True):
    """The resulting keep-alive; "preserve" differs from "disable"."""

    decision: str


def admission_projected(slot: TurnSlot, _: object) -> TurnAdmissionProjected:
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


def explicit(fact: facts.SlotDispositionResolved, kind: ExecutionKind) -> bool:
    return fact.execution_kind_present and fact.execution_kind is kind


def prompted(fact: facts.SlotDispositionResolved) -> bool:
    return fact.prompt_trimmed_text_byte_count > 0 or fact.prompt_non_text_block_count > 0


def resumes(fact: facts.SlotDispositionResolved) -> bool:
    """A guard: the start resumes; the prompt is irrelevant then."""
    return explicit(fact, ExecutionKind.RESUME_PENDING)


def unprompted(fact: facts.SlotDispositionResolved) -> bool:
    return not fact.execution_kind_present and not prompted(fact)


def pending(fact: facts.SlotDispositionResolved) -> bool:
    return fact.pending_continuation is PendingContinuation.RUN_PENDING


def keep_alive(name: str, request: KeepAliveRequest, decision: str) -> Transition:
    return Transition(
        name,
        "resolve_runtime_keep_alive",
        lambda slot, fact: slot.phase is ADMITTED and fact.keep_alive_request is request,
        effects=(RuntimeKeepAliveResolved(decision=decision),),
    )


# --- the machine ----------------------------------------------------------------------------------

_DISPOSITION = "resolve_start_turn_disposition"
_INPUTS = {
    "project_turn_admission": MachineInput(facts.SlotProjected),
    "claim_turn": MachineInput(facts.SlotClaimed),
    "abort_claim": MachineInput(facts.SlotClaimAborted),
    "begin_turn": MachineInput(facts.SlotBegun),
    "resolve_turn": MachineInput(facts.SlotResolved),
    "finalize_turn": MachineInput(facts.SlotFinalized),
    "request_interrupt": MachineInput(facts.SlotInterruptRequested),
    "request_shutdown": MachineInput(facts.SlotShutdownRequested),
    "resolve_pending_admission_drained": MachineInput(facts.SlotDrained),
    "authorize_session_teardown": MachineInput(facts.SlotTeardownAuthorized),
    "authorize_cancel_after_boundary": MachineInput(facts.SlotBoundaryCancelAuthorized),
    "authorize_start_turn_dispatch": MachineInput(facts.SlotDispatchResolved),
    _DISPOSITION: MachineInput(
        facts.SlotDispositionResolved,
        (
            "execution_kind_present",
            "execution_kind",
            "prompt_trimmed_text_byte_count",
            "prompt_non_text_block_count",
            "pending_continuation",
        ),
    ),
    "resolve_runtime_keep_alive": MachineInput(
        facts.SlotKeepAliveResolved, ("keep_alive_request",)
    ),
    "resolve_last_start_turn_public_terminal": MachineInput(facts.SlotPublicTerminalResolved),
}
shut_down: dict[str, Any] = {
    "phase": SHUTTING_DOWN,
    "interrupt_pending": False,
    "admission_drain_pending": True,
}

# fmt: off
_TRANSITIONS = (
    Transition("ProjectTurnAdmission", "project_turn_admission",
        lambda *_: True,
        effects=(admission_projected,)),
    Transition("ClaimTurn", "claim_turn",
        lambda s, _: s.phase is IDLE,
        set_fields(phase=ADMITTED, interrupt_pending=False, shutdown_pending=False,
            last_public_terminal=None),
        (admission_projected,)),
    Transition("ClaimTurnShuttingDown", "claim_turn",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    Transition("AbortClaim", "abort_claim",
        lambda s, _: s.phase is ADMITTED,
        set_fields(phase=IDLE, interrupt_pending=False, shutdown_pending=False),
        (admission_projected,)),
    Transition("AbortClaimShuttingDown", "abort_claim",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(admission_projected,)),
    Transition("BeginTurn", "begin_turn",
        lambda s, _: s.phase is ADMITTED,
        set_fields(phase=RUNNING),
        (admission_projected,)),
    Transition("BeginTurnShuttingDown", "begin_turn",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    Transition("ResolveTurn", "resolve_turn",
        lambda s, _: s.phase is RUNNING,
        set_fields(phase=COMPLETING),
        (admission_projected,)),
    Transition("FinalizeTurnToShutdown", "finalize_turn",
        lambda s, _: s.phase is COMPLETING and s.shutdown_pending,
        set_fields(**shut_down),
        (DRAIN, admission_projected)),
    Transition("FinalizeTurnToIdle", "finalize_turn",
        lambda s, _: s.phase is COMPLETING and not s.shutdown_pending,
        set_fields(phase=IDLE, interrupt_pending=False, shutdown_pending=False),
        (admission_projected,)),
    Transition("RequestInterruptFirst", "request_interrupt",
        lambda s, _: s.phase in (ADMITTED, RUNNING) and not s.interrupt_pending,
        set_fields(interrupt_pending=True),
        (TurnInterruptRequested(wake=True), admission_projected)),
    Transition("RequestInterruptDuplicate", "request_interrupt",
        lambda s, _: s.phase in (ADMITTED, RUNNING) and s.interrupt_pending,
        effects=(TurnInterruptRequested(wake=False), admission_projected)),
    Transition("RequestShutdownImmediate", "request_shutdown",
        lambda s, _: s.phase in (IDLE, ADMITTED),
        set_fields(**shut_down, shutdown_pending=True),
        (DRAIN, admission_projected)),
    Transition("RequestShutdownDeferred", "request_shutdown",
        lambda s, _: s.phase in (RUNNING, COMPLETING),
        set_fields(shutdown_pending=True),
        (admission_projected,)),
    Transition("RequestShutdownAlreadyShuttingDown", "request_shutdown",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(admission_projected,)),
    Transition("ResolvePendingAdmissionDrained", "resolve_pending_admission_drained",
        lambda s, _: s.phase is SHUTTING_DOWN and s.admission_drain_pending,
        set_fields(admission_drain_pending=False),
        (admission_projected,)),
    Transition("AuthorizeSessionTeardown", "authorize_session_teardown",
        lambda s, _: s.phase is SHUTTING_DOWN and not s.admission_drain_pending,
        effects=(SessionTeardownAuthorized(),)),
    Transition("AuthorizeCancelAfterBoundary", "authorize_cancel_after_boundary",
        lambda s, _: s.phase in (ADMITTED, RUNNING),
        effects=(CancelAfterBoundaryAuthorized(),)),
    Transition("AuthorizeStartTurnDispatchAdmitted", "authorize_start_turn_dispatch",
        lambda s, _: s.phase is ADMITTED,
        effects=(StartTurnDispatchResolved(authorization="Authorized"),)),
    Transition("AuthorizeStartTurnDispatchShuttingDown", "authorize_start_turn_dispatch",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(StartTurnDispatchResolved(authorization="Cancelled"),)),
    Transition("ResolveDispositionContentTurn", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and explicit(a, ExecutionKind.CONTENT_TURN),
        set_fields(last_public_terminal=None),
        (RUN_CONTENT,)),
    Transition("ResolveDispositionResumePendingWithBoundary", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and resumes(a) and pending(a),
        set_fields(last_public_terminal=None),
        (RUN_PENDING,)),
    Transition("ResolveDispositionResumePendingWithoutBoundary", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and resumes(a) and not pending(a),
        set_fields(last_public_terminal=NO_PENDING),
        NOTHING_TO_RUN),
    Transition("ResolveDispositionDirectPrompt", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and not a.execution_kind_present and prompted(a),
        set_fields(last_public_terminal=None),
        (RUN_CONTENT,)),
    Transition("ResolveDispositionDirectPending", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and unprompted(a) and pending(a),
        set_fields(last_public_terminal=None),
        (RUN_PENDING,)),
    Transition("ResolveDispositionDirectNoPending", _DISPOSITION,
        lambda s, a: s.phase is ADMITTED and unprompted(a) and not pending(a),
        set_fields(last_public_terminal=NO_PENDING),
        NOTHING_TO_RUN),
    Transition("ResolveStartTurnDispositionShuttingDown", _DISPOSITION,
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    keep_alive("ResolveRuntimeKeepAliveEnable", KeepAliveRequest.ENABLE, "PersistEnabled"),
    keep_alive("ResolveRuntimeKeepAliveDisable", KeepAliveRequest.DISABLE, "PersistDisabled"),
    keep_alive("ResolveRuntimeKeepAlivePreserve", KeepAliveRequest.PRESERVE, "PreserveExisting"),
    Transition("ResolveRuntimeKeepAliveShuttingDown", "resolve_runtime_keep_alive",
        lambda s, _: s.phase is SHUTTING_DOWN,
        effects=(ARCHIVED,)),
    Transition("ResolveLastStartTurnPublicTerminal", "resolve_last_start_turn_public_terminal",
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
    rows=_TRANSITIONS,
    invariants=(shutdown_phase_is_not_active, drain_obligation_only_while_shutting_down),
)
