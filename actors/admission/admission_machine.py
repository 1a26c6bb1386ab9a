"""session_admission: accepts inputs, prepares their runs and ends them; and the session's host from
admission's facts.

The phase is the host's; the machine has no variables. Its transitions are the seed's in every
edition: HEAD's four admission transitions are not part of Rookery. Accepting an input only signals;
``facts`` decides which input runs next, and ``commands`` refuses to commit a run whose turn has not
ended.

Other deciders follow the host from admission's facts by ``evolve_host``. Their copy may lag behind;
where that matters, a commit is fenced over the session's subjects.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from rookery.actors.admission.lifecycle_machine import (
    HOST_INVARIANTS,
    LIFECYCLE,
    RuntimeEffectFact,
    SubmitRunPrimitive,
)
from rookery.actors.kernel.machines import (
    ATTACHED,
    DESTROYED,
    IDLE,
    RETIRED,
    RUNNING,
    HostPhase,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    session_registered,
    set_fields,
)
from rookery.schemas.facts import session as facts

__all__ = ["ADMISSION", "PostAdmissionSignalKind", "evolve_host"]


class PostAdmissionSignalKind(StrEnum):
    """How strongly an accepted input signals the session, weakest first."""

    WAKE_LOOP = "WakeLoop"
    INTERRUPT_YIELDING = "InterruptYielding"
    REQUEST_IMMEDIATE_PROCESSING = "RequestImmediateProcessing"


# --- effects ------------------------------------------------------------------------------------


class ResolveAdmission(TransitionEffect, frozen=True, kw_only=True):
    """Classify the work that arrived."""


class IngressAccepted(TransitionEffect, frozen=True, kw_only=True):
    """Admission has accepted the input and will end it."""


class PostAdmissionSignal(TransitionEffect, frozen=True, kw_only=True):
    """The session's loop should look at its queue."""

    signal: PostAdmissionSignalKind


class InitiateRecycle(TransitionEffect, frozen=True, kw_only=True):
    """Set up the runtime again."""


class RecordTerminalOutcome(TransitionEffect, frozen=True, kw_only=True):
    """Store the failed turn's outcome."""


ACCEPTED = IngressAccepted()
SUBMIT = SubmitRunPrimitive()
WAKE = PostAdmissionSignal(signal=PostAdmissionSignalKind.WAKE_LOOP)
YIELD = PostAdmissionSignal(signal=PostAdmissionSignalKind.INTERRUPT_YIELDING)
AT_ONCE = PostAdmissionSignal(signal=PostAdmissionSignalKind.REQUEST_IMMEDIATE_PROCESSING)
BOUNDARY_CANCEL = RuntimeEffectFact(
    kind="CancelAfterBoundary", reason="peer admission requested cooperative boundary cancel"
)


# --- when rows hold -----------------------------------------------------------------------------

Guard = Callable[[SessionHost, Any], bool]
RunEndFact = facts.RunCommitted | facts.RunFailed | facts.RunRolledBack


def queued(fact: facts.InputAccepted) -> bool:
    return not fact.immediate and not fact.interrupt_yielding


def immediate(fact: facts.InputAccepted) -> bool:
    return fact.immediate and not fact.interrupt_yielding


def interrupt_yielding(fact: facts.InputAccepted) -> bool:
    return fact.interrupt_yielding and not fact.immediate


def turn_failed_with_cause(_: SessionHost, fact: facts.RunFailed) -> bool:
    return fact.turn_phase == "Failed" and fact.terminal_cause_kind not in (None, "Unknown")


def ends_here(home: HostPhase, also: Guard | None) -> Guard:
    """A guard: the input ends the current run, and the run came from phase ``home``."""

    def guard(host: SessionHost, fact: RunEndFact) -> bool:
        if host.phase is not RUNNING or host.pre_run_phase is not home:
            return False
        return host.current_run_id == fact.run and (also is None or also(host, fact))

    return guard


def prepare_from(home: HostPhase) -> Callable[[SessionHost, facts.RunPrepared], SessionHost]:
    return lambda host, fact: replace(
        host, phase=RUNNING, current_run_id=fact.run, pre_run_phase=home
    )


recycle = {"active_fence_token": None, "current_run_id": None}


# --- the machine --------------------------------------------------------------------------------

_ACCEPT = ("input_id", "immediate", "interrupt_yielding", "wake_if_idle")
_INPUTS = {
    "ingest": MachineInput(facts.WorkIngested, ("runtime_id", "work_id", "origin")),
    "accept_with_completion": MachineInput(facts.InputAccepted, _ACCEPT),
    "accept_without_wake": MachineInput(facts.InputAccepted, ("input_id",)),
    "prepare": MachineInput(facts.RunPrepared, ("run_id",)),
    "commit": MachineInput(facts.RunCommitted, ("input_id", "run_id")),
    "recycle": MachineInput(facts.Recycled),
    "fail_run": MachineInput(facts.RunFailed, ("run_id",)),
    "rollback_run": MachineInput(facts.RunRolledBack, ("run_id",)),
}


def _endings(
    on: str, name: str, also: Guard | None = None, effects: tuple[TransitionEffect, ...] = ()
) -> list[Transition]:
    """The three transitions of an input that ends the current run, back to the phase it came
    from."""
    return [
        Transition(
            f"{name}To{home}",
            on,
            ends_here(home, also),
            set_fields(phase=home, current_run_id=None, pre_run_phase=None),
            effects,
        )
        for home in (IDLE, ATTACHED, RETIRED)
    ]


# fmt: off
_TRANSITIONS = (
    Transition("Ingest", "ingest",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING) and session_registered(h),
        effects=(ResolveAdmission(),)),
    Transition("AcceptWithCompletionIdleQueued", "accept_with_completion",
        lambda h, a: h.phase is IDLE and session_registered(h) and queued(a),
        effects=(ACCEPTED, WAKE)),
    Transition("AcceptWithCompletionIdleImmediate", "accept_with_completion",
        lambda h, a: h.phase is IDLE and session_registered(h) and immediate(a),
        effects=(ACCEPTED, AT_ONCE)),
    Transition("AcceptWithCompletionAttachedImmediate", "accept_with_completion",
        lambda h, a: h.phase is ATTACHED and session_registered(h) and immediate(a),
        effects=(ACCEPTED, AT_ONCE, SUBMIT)),
    Transition("AcceptWithCompletionAttachedQueued", "accept_with_completion",
        lambda h, a: h.phase is ATTACHED and session_registered(h) and queued(a),
        effects=(ACCEPTED, WAKE)),
    Transition("AcceptWithCompletionRunningQueuedPassive", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h)
        and queued(a) and not a.wake_if_idle,
        effects=(ACCEPTED,)),
    Transition("AcceptWithCompletionRunningQueuedWakeIfIdle", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h) and queued(a) and a.wake_if_idle,
        effects=(ACCEPTED, WAKE)),
    Transition("AcceptWithCompletionRunningInterruptYielding", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h) and interrupt_yielding(a),
        effects=(ACCEPTED, YIELD, BOUNDARY_CANCEL)),
    Transition("AcceptWithCompletionRunningImmediate", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h) and immediate(a),
        effects=(ACCEPTED, AT_ONCE, BOUNDARY_CANCEL)),
    Transition("AcceptWithoutWake", "accept_without_wake",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING) and session_registered(h),
        effects=(ACCEPTED,)),
    Transition("PrepareIdle", "prepare",
        lambda h, _: h.phase is IDLE and session_registered(h),
        prepare_from(IDLE),
        (SUBMIT,)),
    Transition("PrepareAttached", "prepare",
        lambda h, _: h.phase is ATTACHED and session_registered(h),
        prepare_from(ATTACHED),
        (SUBMIT,)),
    *_endings("commit", "CommitRunning"),
    Transition("RecycleFromIdleOrRetired", "recycle",
        lambda h, _: h.phase in (IDLE, RETIRED) and session_registered(h),
        set_fields(phase=IDLE, **recycle),
        (InitiateRecycle(),)),
    Transition("RecycleFromAttached", "recycle",
        lambda h, _: h.phase is ATTACHED and session_registered(h),
        set_fields(phase=ATTACHED, **recycle),
        (InitiateRecycle(),)),
    *_endings("fail_run", "FailRunning", turn_failed_with_cause, (RecordTerminalOutcome(),)),
    *_endings("rollback_run", "RollbackRun"),
)
# fmt: on

ADMISSION = Machine(
    "session_admission",
    handle="SessionAdmissionHandle",
    phases=tuple(HostPhase),
    initial=SessionHost(),
    inputs=_INPUTS,
    rows=_TRANSITIONS,
    invariants=HOST_INVARIANTS,
)


_MACHINES: dict[type, Machine[SessionHost]] = {
    one.fact: machine for machine in (LIFECYCLE, ADMISSION) for one in machine.inputs.values()
}


def evolve_host(host: SessionHost, fact: facts.SessionFact) -> SessionHost:
    """The host after ``fact``. Total. A destroyed host ignores facts; only a new generation
    follows."""
    if isinstance(fact, facts.HistoryRestarted):
        return SessionHost(phase=DESTROYED)
    machine = _MACHINES.get(type(fact))
    if machine is None:
        return host
    return machine.evolve(SessionHost() if host.phase is DESTROYED else host, fact)
