"""session_lifecycle: where a session's host stands, and what may move it there.

The host is the one record all machines of a session look at; admission is its only writer and the
others keep what admission's facts say. The phase is the host phase itself. What is queued is
``fold``'s, who runs next ``decision``'s; taking inputs in is ``machine``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect, put
from rookery.actors.kernel.machines.session_host import (
    ATTACHED,
    DESTROYED,
    IDLE,
    INITIALIZING,
    LIVE,
    RETIRED,
    RUNNING,
    STOPPED,
    Host,
    HostPhase,
    RegistrationPhase,
    session_registered,
)
from rookery.schemas.facts import session as facts

__all__ = ["HOST_INVARIANTS", "LIFECYCLE", "RuntimeEffectFact", "SubmitRunPrimitive"]


# --- effects ------------------------------------------------------------------------------------


class _OfBinding(RowEffect, frozen=True, kw_only=True):
    agent_runtime_id: str | None
    fence_token: int | None


class RuntimeBound(_OfBinding, frozen=True, kw_only=True):
    """A runtime was bound to the session."""


class RuntimeRetired(_OfBinding, frozen=True, kw_only=True):
    """The runtime gets no new input."""


class RuntimeDestroyed(_OfBinding, frozen=True, kw_only=True):
    """The runtime's session is over."""


class RuntimeNotice(RowEffect, frozen=True, kw_only=True):
    """Something people may want to know of the runtime."""

    kind: str
    detail: str


class RuntimeEffectFact(RowEffect, frozen=True, kw_only=True):
    """Something the runtime is told to do."""

    kind: str
    reason: str


class WakeInterrupt(RowEffect, frozen=True, kw_only=True):
    """The current run is to yield now."""


class RequestCancellationAtBoundary(RowEffect, frozen=True, kw_only=True):
    """The current run is to end at its next boundary."""


class SubmitRunPrimitive(RowEffect, frozen=True, kw_only=True):
    """The prepared run's turn may start."""


def of_binding(effect: type[_OfBinding]) -> Callable[[Host, object], _OfBinding]:
    return lambda host, _: effect(
        agent_runtime_id=host.active_runtime_id, fence_token=host.active_fence_token
    )


def stop_executor(_: Host, asked: facts.ExecutorStopRequested) -> RuntimeEffectFact:
    return RuntimeEffectFact(kind="StopRuntimeExecutor", reason=asked.reason)


def cancel_after_boundary(_: Host, asked: facts.BoundaryCancelRequested) -> RuntimeEffectFact:
    return RuntimeEffectFact(kind="CancelAfterBoundary", reason=asked.reason)


STOP_NOTICE = RuntimeNotice(kind="Stop", detail="runtime executor stopped")
EXIT_NOTICE = RuntimeNotice(kind="Exit", detail="runtime executor exited")
RESET_NOTICE = RuntimeNotice(kind="Reset", detail="runtime reset")
RECOVER_NOTICE = RuntimeNotice(kind="Recover", detail="runtime recovered")


# --- what rows make of a host -------------------------------------------------------------------


def bind(host: Host, asked: facts.BindingsPrepared) -> Host:
    return replace(
        host, active_runtime_id=asked.agent_runtime_id, active_fence_token=asked.fence_token
    )


forget_intents = put(silent_intents=frozenset())
forget_run: dict[str, Any] = {
    "current_run_id": None,
    "pre_run_phase": None,
    "silent_intents": frozenset(),
}
destroy = put(phase=DESTROYED, registration_phase=RegistrationPhase.QUEUING, **forget_run)
unregister = put(
    phase=IDLE,
    session_id=None,
    active_runtime_id=None,
    active_fence_token=None,
    current_run_id=None,
    pre_run_phase=None,
    registration_phase=RegistrationPhase.QUEUING,
)


# --- invariants ---------------------------------------------------------------------------------


def fence_requires_bound_runtime(host: Host) -> bool:
    return host.active_fence_token is None or host.active_runtime_id is not None


def running_has_current_run(host: Host) -> bool:
    return host.phase != RUNNING or host.current_run_id is not None


def current_run_only_while_running_or_retired(host: Host) -> bool:
    return host.current_run_id is None or host.phase in (RUNNING, RETIRED)


HOST_INVARIANTS = (
    fence_requires_bound_runtime,
    running_has_current_run,
    current_run_only_while_running_or_retired,
)


# --- the machine --------------------------------------------------------------------------------

_INPUTS = {
    "Initialize": Input(facts.Initialized),
    "RegisterSession": Input(facts.Registered, ("session_id_in",)),
    "UnregisterSession": Input(facts.Unregistered, ("session_id_in",)),
    "PrepareBindings": Input(
        facts.BindingsPrepared, ("agent_runtime_id", "fence_token", "generation", "session_id_in")
    ),
    "EnsureSessionWithExecutor": Input(facts.ExecutorEnsured, ("session_id_in",)),
    "SetSilentIntents": Input(facts.SilentIntentsSet, ("session_id_in", "intents")),
    "Retire": Input(facts.Retired, ("session_id_in",)),
    "Reset": Input(facts.Reset),
    "StopRuntimeExecutor": Input(facts.ExecutorStopRequested, ("reason",)),
    "RuntimeExecutorExited": Input(facts.ExecutorExited),
    "Destroy": Input(facts.Destroyed, ("session_id_in",)),
    "Recover": Input(facts.Recovered),
    "InterruptCurrentRun": Input(facts.RunInterruptRequested),
    "CancelAfterBoundary": Input(facts.BoundaryCancelRequested, ("reason",)),
    "DrainQueuedRun": Input(facts.QueuedRunDrained, ("run_id",)),
}

# fmt: off
_ROWS = (
    Row("Initialize", "Initialize",
        lambda h, _: h.phase is INITIALIZING,
        put(phase=IDLE)),
    Row("RegisterSession", "RegisterSession",
        lambda h, _: h.phase in LIVE,
        lambda h, a: replace(h, session_id=a.session_id_in)),
    Row("UnregisterSession", "UnregisterSession",
        lambda h, a: h.phase in LIVE and h.session_id == a.session_id_in,
        unregister),
    Row("PrepareBindingsIdle", "PrepareBindings",
        lambda h, _: h.phase is IDLE,
        lambda h, a: replace(bind(h, a), phase=ATTACHED),
        (of_binding(RuntimeBound),)),
    Row("PrepareBindings", "PrepareBindings",
        lambda h, _: h.phase in (INITIALIZING, ATTACHED, RUNNING, RETIRED, STOPPED),
        bind,
        (of_binding(RuntimeBound),)),
    Row("EnsureSessionWithExecutorIdle", "EnsureSessionWithExecutor",
        lambda h, _: h.phase is IDLE,
        put(phase=ATTACHED, registration_phase=RegistrationPhase.ACTIVE)),
    Row("EnsureSessionWithExecutorActive", "EnsureSessionWithExecutor",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        put(registration_phase=RegistrationPhase.ACTIVE)),
    Row("EnsureSessionWithExecutorInactive", "EnsureSessionWithExecutor",
        lambda h, _: h.phase in (RETIRED, STOPPED)),
    Row("SetSilentIntents", "SetSilentIntents",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING, RETIRED) and session_registered(h),
        lambda h, a: replace(h, silent_intents=frozenset(a.intents))),
    Row("SetSilentIntentsStopped", "SetSilentIntents",
        lambda h, _: h.phase is STOPPED and session_registered(h)),
    Row("Retire", "Retire",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING),
        put(phase=RETIRED),
        (of_binding(RuntimeRetired),)),
    Row("RetireAlreadyRetired", "Retire",
        lambda h, _: h.phase is RETIRED),
    Row("Reset", "Reset",
        lambda h, _: h.phase in (INITIALIZING, IDLE, ATTACHED, RETIRED),
        put(phase=IDLE, active_fence_token=None, **forget_run),
        (RESET_NOTICE,)),
    Row("StopRuntimeExecutorUnbound", "StopRuntimeExecutor",
        lambda h, _: h.phase in (INITIALIZING, IDLE, RETIRED),
        put(phase=STOPPED, **forget_run),
        (STOP_NOTICE, stop_executor)),
    Row("StopRuntimeExecutorBound", "StopRuntimeExecutor",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        forget_intents,
        (STOP_NOTICE, stop_executor)),
    Row("RuntimeExecutorExited", "RuntimeExecutorExited",
        lambda h, _: h.phase in (ATTACHED, RUNNING, RETIRED),
        put(phase=STOPPED, **forget_run),
        (EXIT_NOTICE,)),
    Row("RuntimeExecutorExitedIdle", "RuntimeExecutorExited",
        lambda h, _: h.phase is IDLE,
        put(phase=STOPPED, silent_intents=frozenset()),
        (EXIT_NOTICE,)),
    Row("RuntimeExecutorExitedStopped", "RuntimeExecutorExited",
        lambda h, _: h.phase is STOPPED),
    Row("DestroyInitializing", "Destroy",
        lambda h, _: h.phase is INITIALIZING and h.active_runtime_id is not None,
        destroy,
        (of_binding(RuntimeDestroyed),)),
    Row("Destroy", "Destroy",
        lambda h, _: h.phase in LIVE,
        destroy,
        (of_binding(RuntimeDestroyed),)),
    Row("Recover", "Recover",
        lambda h, _: h.phase in (INITIALIZING, IDLE, ATTACHED, RETIRED, STOPPED),
        effects=(RECOVER_NOTICE,)),
    Row("InterruptCurrentRun", "InterruptCurrentRun",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        effects=(WakeInterrupt(), RequestCancellationAtBoundary())),
    Row("CancelAfterBoundary", "CancelAfterBoundary",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        effects=(RequestCancellationAtBoundary(), cancel_after_boundary)),
    Row("DrainQueuedRun", "DrainQueuedRun",
        lambda h, _: h.phase is RETIRED,
        lambda h, a: replace(h, phase=RUNNING, current_run_id=a.run, pre_run_phase=RETIRED),
        (SubmitRunPrimitive(),)),
)
# fmt: on

LIFECYCLE = Machine(
    "session_lifecycle",
    handle="SessionLifecycle",
    phases=tuple(HostPhase),
    initial=Host(),
    inputs=_INPUTS,
    rows=_ROWS,
    invariants=HOST_INVARIANTS,
)
