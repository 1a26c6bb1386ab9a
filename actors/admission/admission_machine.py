"""session_admission: inputs are taken in, runs are prepared and come to their end.

The phase is the host's and there are no variables of its own. These are the seed's rows in every
edition: HEAD's four admission rows are not ours. Accepting is signalling only; which input runs
when is ``decision``'s, the care that no run is committed in the middle of its turn ``queue``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from rookery.actors.admission.lifecycle_machine import (
    HOST_INVARIANTS,
    RuntimeEffectFact,
    SubmitRunPrimitive,
)
from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect, put
from rookery.actors.kernel.machines.session_host import (
    ATTACHED,
    IDLE,
    RETIRED,
    RUNNING,
    Host,
    HostPhase,
    session_registered,
)
from rookery.schemas.facts import session as facts

__all__ = ["ADMISSION", "PostAdmissionSignalKind"]


class PostAdmissionSignalKind(StrEnum):
    """How strongly an accepted input knocks, weakest first."""

    WAKE_LOOP = "WakeLoop"
    INTERRUPT_YIELDING = "InterruptYielding"
    REQUEST_IMMEDIATE_PROCESSING = "RequestImmediateProcessing"


# --- effects ------------------------------------------------------------------------------------


class ResolveAdmission(RowEffect, frozen=True, kw_only=True):
    """The work that arrived is to be classified."""


class IngressAccepted(RowEffect, frozen=True, kw_only=True):
    """The input is ours to end."""


class PostAdmissionSignal(RowEffect, frozen=True, kw_only=True):
    """The session's loop is to look at its queue."""

    signal: PostAdmissionSignalKind


class InitiateRecycle(RowEffect, frozen=True, kw_only=True):
    """The runtime is to be set up anew."""


class RecordTerminalOutcome(RowEffect, frozen=True, kw_only=True):
    """The failed turn's outcome is to be kept."""


ACCEPTED = IngressAccepted()
SUBMIT = SubmitRunPrimitive()
WAKE = PostAdmissionSignal(signal=PostAdmissionSignalKind.WAKE_LOOP)
YIELD = PostAdmissionSignal(signal=PostAdmissionSignalKind.INTERRUPT_YIELDING)
AT_ONCE = PostAdmissionSignal(signal=PostAdmissionSignalKind.REQUEST_IMMEDIATE_PROCESSING)
BOUNDARY_CANCEL = RuntimeEffectFact(
    kind="CancelAfterBoundary", reason="peer admission requested cooperative boundary cancel"
)


# --- when rows hold -----------------------------------------------------------------------------

When = Callable[[Host, Any], bool]
RunEnded = facts.RunCommitted | facts.RunFailed | facts.RunRolledBack


def queued(asked: facts.InputAccepted) -> bool:
    return not asked.immediate and not asked.interrupt_yielding


def immediate(asked: facts.InputAccepted) -> bool:
    return asked.immediate and not asked.interrupt_yielding


def interrupt_yielding(asked: facts.InputAccepted) -> bool:
    return asked.interrupt_yielding and not asked.immediate


def turn_failed_with_cause(_: Host, asked: facts.RunFailed) -> bool:
    return asked.turn_phase == "Failed" and asked.terminal_cause_kind not in (None, "Unknown")


def ends_here(home: HostPhase, also: When | None) -> When:
    """Whether this ends the current run, and the run came from ``home``."""

    def when(host: Host, asked: RunEnded) -> bool:
        if host.phase is not RUNNING or host.pre_run_phase is not home:
            return False
        return host.current_run_id == asked.run and (also is None or also(host, asked))

    return when


def prepare_from(home: HostPhase) -> Callable[[Host, facts.RunPrepared], Host]:
    return lambda host, asked: replace(
        host, phase=RUNNING, current_run_id=asked.run, pre_run_phase=home
    )


recycle = {"active_fence_token": None, "current_run_id": None}


# --- the machine --------------------------------------------------------------------------------

_ACCEPT = ("input_id", "immediate", "interrupt_yielding", "wake_if_idle")
_INPUTS = {
    "ingest": Input(facts.WorkIngested, ("runtime_id", "work_id", "origin")),
    "accept_with_completion": Input(facts.InputAccepted, _ACCEPT),
    "accept_without_wake": Input(facts.InputAccepted, ("input_id",)),
    "prepare": Input(facts.RunPrepared, ("run_id",)),
    "commit": Input(facts.RunCommitted, ("input_id", "run_id")),
    "recycle": Input(facts.Recycled),
    "fail_run": Input(facts.RunFailed, ("run_id",)),
    "rollback_run": Input(facts.RunRolledBack, ("run_id",)),
}


def _ends(
    on: str, name: str, also: When | None = None, effects: tuple[RowEffect, ...] = ()
) -> list[Row]:
    """The three rows of an input that ends the current run: back to where the run came from."""
    return [
        Row(
            f"{name}To{home}",
            on,
            ends_here(home, also),
            put(phase=home, current_run_id=None, pre_run_phase=None),
            effects,
        )
        for home in (IDLE, ATTACHED, RETIRED)
    ]


# fmt: off
_ROWS = (
    Row("Ingest", "ingest",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING) and session_registered(h),
        effects=(ResolveAdmission(),)),
    Row("AcceptWithCompletionIdleQueued", "accept_with_completion",
        lambda h, a: h.phase is IDLE and session_registered(h) and queued(a),
        effects=(ACCEPTED, WAKE)),
    Row("AcceptWithCompletionIdleImmediate", "accept_with_completion",
        lambda h, a: h.phase is IDLE and session_registered(h) and immediate(a),
        effects=(ACCEPTED, AT_ONCE)),
    Row("AcceptWithCompletionAttachedImmediate", "accept_with_completion",
        lambda h, a: h.phase is ATTACHED and session_registered(h) and immediate(a),
        effects=(ACCEPTED, AT_ONCE, SUBMIT)),
    Row("AcceptWithCompletionAttachedQueued", "accept_with_completion",
        lambda h, a: h.phase is ATTACHED and session_registered(h) and queued(a),
        effects=(ACCEPTED, WAKE)),
    Row("AcceptWithCompletionRunningQueuedPassive", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h)
        and queued(a) and not a.wake_if_idle,
        effects=(ACCEPTED,)),
    Row("AcceptWithCompletionRunningQueuedWakeIfIdle", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h) and queued(a) and a.wake_if_idle,
        effects=(ACCEPTED, WAKE)),
    Row("AcceptWithCompletionRunningInterruptYielding", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h) and interrupt_yielding(a),
        effects=(ACCEPTED, YIELD, BOUNDARY_CANCEL)),
    Row("AcceptWithCompletionRunningImmediate", "accept_with_completion",
        lambda h, a: h.phase is RUNNING and session_registered(h) and immediate(a),
        effects=(ACCEPTED, AT_ONCE, BOUNDARY_CANCEL)),
    Row("AcceptWithoutWake", "accept_without_wake",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING) and session_registered(h),
        effects=(ACCEPTED,)),
    Row("PrepareIdle", "prepare",
        lambda h, _: h.phase is IDLE and session_registered(h),
        prepare_from(IDLE),
        (SUBMIT,)),
    Row("PrepareAttached", "prepare",
        lambda h, _: h.phase is ATTACHED and session_registered(h),
        prepare_from(ATTACHED),
        (SUBMIT,)),
    *_ends("commit", "CommitRunning"),
    Row("RecycleFromIdleOrRetired", "recycle",
        lambda h, _: h.phase in (IDLE, RETIRED) and session_registered(h),
        put(phase=IDLE, **recycle),
        (InitiateRecycle(),)),
    Row("RecycleFromAttached", "recycle",
        lambda h, _: h.phase is ATTACHED and session_registered(h),
        put(phase=ATTACHED, **recycle),
        (InitiateRecycle(),)),
    *_ends("fail_run", "FailRunning", turn_failed_with_cause, (RecordTerminalOutcome(),)),
    *_ends("rollback_run", "RollbackRun"),
)
# fmt: on

ADMISSION = Machine(
    "session_admission",
    handle="SessionAdmissionHandle",
    phases=tuple(HostPhase),
    initial=Host(),
    inputs=_INPUTS,
    rows=_ROWS,
    invariants=HOST_INVARIANTS,
)
