"""session_lifecycle: the phases of a session's host and their transitions.

All machines of a session read the host; admission alone writes it. The machine's phase is the
host's. The queue is ``evolve``'s state, the next run is chosen in ``facts``, inputs are accepted in
``admission_machine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    ATTACHED,
    DESTROYED,
    IDLE,
    INITIALIZING,
    LIVE,
    RETIRED,
    RUNNING,
    STOPPED,
    HostPhase,
    Machine,
    MachineInput,
    RegistrationPhase,
    SessionHost,
    Transition,
    TransitionEffect,
    session_registered,
    set_fields,
)
from rookery.schemas.facts import session as facts

__all__ = ["HOST_INVARIANTS", "LIFECYCLE", "RuntimeEffectFact", "SubmitRunPrimitive"]


# --- effects ------------------------------------------------------------------------------------


class _BindingEffect(TransitionEffect, frozen=True, kw_only=True):
    agent_runtime_id: str | None
    fence_token: int | None


class RuntimeBound(_BindingEffect, frozen=True, kw_only=True):
    """A runtime was bound to the session."""


class RuntimeRetired(_BindingEffect, frozen=True, kw_only=True):
    """The runtime gets no more inputs."""


class RuntimeDestroyed(_BindingEffect, frozen=True, kw_only=True):
    """The runtime's session has ended."""


class RuntimeNotice(TransitionEffect, frozen=True, kw_only=True):
    """An operator's notice about the runtime."""

    kind: str
    detail: str


class RuntimeEffectFact(TransitionEffect, frozen=True, kw_only=True):
    """A request to the runtime."""

    kind: str
    reason: str


class WakeInterrupt(TransitionEffect, frozen=True, kw_only=True):
    """The current run should yield now."""


class RequestCancellationAtBoundary(TransitionEffect, frozen=True, kw_only=True):
    """The current run should end at its next boundary."""


class SubmitRunPrimitive(TransitionEffect, frozen=True, kw_only=True):
    """The prepared run's turn may start."""


def of_binding(effect: type[_BindingEffect]) -> Callable[[SessionHost, object], _BindingEffect]:
    return lambda host, _: effect(
        agent_runtime_id=host.active_runtime_id, fence_token=host.active_fence_token
    )


def stop_executor(_: SessionHost, fact: facts.ExecutorStopRequested) -> RuntimeEffectFact:
    return RuntimeEffectFact(kind="StopRuntimeExecutor", reason=fact.reason)


def cancel_after_boundary(_: SessionHost, fact: facts.BoundaryCancelRequested) -> RuntimeEffectFact:
    return RuntimeEffectFact(kind="CancelAfterBoundary", reason=fact.reason)


STOP_NOTICE = RuntimeNotice(kind="Stop", detail="runtime executor stopped")
EXIT_NOTICE = RuntimeNotice(kind="Exit", detail="runtime executor exited")
RESET_NOTICE = RuntimeNotice(kind="Reset", detail="runtime reset")
RECOVER_NOTICE = RuntimeNotice(kind="Recover", detail="runtime recovered")


# --- what rows make of a host -------------------------------------------------------------------


def bind(host: SessionHost, fact: facts.BindingsPrepared) -> SessionHost:
    return replace(
        host, active_runtime_id=fact.agent_runtime_id, active_fence_token=fact.fence_token
    )


clear_intents = set_fields(silent_intents=frozenset())
CLEARED_RUN: dict[str, Any] = {
    "current_run_id": None,
    "pre_run_phase": None,
    "silent_intents": frozenset(),
}
destroy = set_fields(phase=DESTROYED, registration_phase=RegistrationPhase.QUEUING, **CLEARED_RUN)
unregister = set_fields(
    phase=IDLE,
    session_id=None,
    active_runtime_id=None,
    active_fence_token=None,
    current_run_id=None,
    pre_run_phase=None,
    registration_phase=RegistrationPhase.QUEUING,
)


# --- invariants ---------------------------------------------------------------------------------


def fence_requires_bound_runtime(host: SessionHost) -> bool:
    return host.active_fence_token is None or host.active_runtime_id is not None


def running_has_current_run(host: SessionHost) -> bool:
    return host.phase != RUNNING or host.current_run_id is not None


def current_run_only_while_running_or_retired(host: SessionHost) -> bool:
    return host.current_run_id is None or host.phase in (RUNNING, RETIRED)


HOST_INVARIANTS = (
    fence_requires_bound_runtime,
    running_has_current_run,
    current_run_only_while_running_or_retired,
)


# --- the machine --------------------------------------------------------------------------------

_INPUTS = {
    "Initialize": MachineInput(facts.Initialized),
    "RegisterSession": MachineInput(facts.Registered, ("session_id_in",)),
    "UnregisterSession": MachineInput(facts.Unregistered, ("session_id_in",)),
    "PrepareBindings": MachineInput(
        facts.BindingsPrepared, ("agent_runtime_id", "fence_token", "generation", "session_id_in")
    ),
    "EnsureSessionWithExecutor": MachineInput(facts.ExecutorEnsured, ("session_id_in",)),
    "SetSilentIntents": MachineInput(facts.SilentIntentsSet, ("session_id_in", "intents")),
    "Retire": MachineInput(facts.Retired, ("session_id_in",)),
    "Reset": MachineInput(facts.Reset),
    "StopRuntimeExecutor": MachineInput(facts.ExecutorStopRequested, ("reason",)),
    "RuntimeExecutorExited": MachineInput(facts.ExecutorExited),
    "Destroy": MachineInput(facts.Destroyed, ("session_id_in",)),
    "Recover": MachineInput(facts.Recovered),
    "InterruptCurrentRun": MachineInput(facts.RunInterruptRequested),
    "CancelAfterBoundary": MachineInput(facts.BoundaryCancelRequested, ("reason",)),
    "DrainQueuedRun": MachineInput(facts.QueuedRunDrained, ("run_id",)),
}

# fmt: off
_TRANSITIONS = (
    Transition("Initialize", "Initialize",
        lambda h, _: h.phase is INITIALIZING,
        set_fields(phase=IDLE)),
    Transition("RegisterSession", "RegisterSession",
        lambda h, _: h.phase in LIVE,
        lambda h, a: replace(h, session_id=a.session_id_in)),
    Transition("UnregisterSession", "UnregisterSession",
        lambda h, a: h.phase in LIVE and h.session_id == a.session_id_in,
        unregister),
    Transition("PrepareBindingsIdle", "PrepareBindings",
        lambda h, _: h.phase is IDLE,
        lambda h, a: replace(bind(h, a), phase=ATTACHED),
        (of_binding(RuntimeBound),)),
    Transition("PrepareBindings", "PrepareBindings",
        lambda h, _: h.phase in (INITIALIZING, ATTACHED, RUNNING, RETIRED, STOPPED),
        bind,
        (of_binding(RuntimeBound),)),
    Transition("EnsureSessionWithExecutorIdle", "EnsureSessionWithExecutor",
        lambda h, _: h.phase is IDLE,
        set_fields(phase=ATTACHED, registration_phase=RegistrationPhase.ACTIVE)),
    Transition("EnsureSessionWithExecutorActive", "EnsureSessionWithExecutor",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        set_fields(registration_phase=RegistrationPhase.ACTIVE)),
    Transition("EnsureSessionWithExecutorInactive", "EnsureSessionWithExecutor",
        lambda h, _: h.phase in (RETIRED, STOPPED)),
    Transition("SetSilentIntents", "SetSilentIntents",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING, RETIRED) and session_registered(h),
        lambda h, a: replace(h, silent_intents=frozenset(a.intents))),
    Transition("SetSilentIntentsStopped", "SetSilentIntents",
        lambda h, _: h.phase is STOPPED and session_registered(h)),
    Transition("Retire", "Retire",
        lambda h, _: h.phase in (IDLE, ATTACHED, RUNNING),
        set_fields(phase=RETIRED),
        (of_binding(RuntimeRetired),)),
    Transition("RetireAlreadyRetired", "Retire",
        lambda h, _: h.phase is RETIRED),
    Transition("Reset", "Reset",
        lambda h, _: h.phase in (INITIALIZING, IDLE, ATTACHED, RETIRED),
        set_fields(phase=IDLE, active_fence_token=None, **CLEARED_RUN),
        (RESET_NOTICE,)),
    Transition("StopRuntimeExecutorUnbound", "StopRuntimeExecutor",
        lambda h, _: h.phase in (INITIALIZING, IDLE, RETIRED),
        set_fields(phase=STOPPED, **CLEARED_RUN),
        (STOP_NOTICE, stop_executor)),
    Transition("StopRuntimeExecutorBound", "StopRuntimeExecutor",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        clear_intents,
        (STOP_NOTICE, stop_executor)),
    Transition("RuntimeExecutorExited", "RuntimeExecutorExited",
        lambda h, _: h.phase in (ATTACHED, RUNNING, RETIRED),
        set_fields(phase=STOPPED, **CLEARED_RUN),
        (EXIT_NOTICE,)),
    Transition("RuntimeExecutorExitedIdle", "RuntimeExecutorExited",
        lambda h, _: h.phase is IDLE,
        set_fields(phase=STOPPED, silent_intents=frozenset()),
        (EXIT_NOTICE,)),
    Transition("RuntimeExecutorExitedStopped", "RuntimeExecutorExited",
        lambda h, _: h.phase is STOPPED),
    Transition("DestroyInitializing", "Destroy",
        lambda h, _: h.phase is INITIALIZING and h.active_runtime_id is not None,
        destroy,
        (of_binding(RuntimeDestroyed),)),
    Transition("Destroy", "Destroy",
        lambda h, _: h.phase in LIVE,
        destroy,
        (of_binding(RuntimeDestroyed),)),
    Transition("Recover", "Recover",
        lambda h, _: h.phase in (INITIALIZING, IDLE, ATTACHED, RETIRED, STOPPED),
        effects=(RECOVER_NOTICE,)),
    Transition("InterruptCurrentRun", "InterruptCurrentRun",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        effects=(WakeInterrupt(), RequestCancellationAtBoundary())),
    Transition("CancelAfterBoundary", "CancelAfterBoundary",
        lambda h, _: h.phase in (ATTACHED, RUNNING),
        effects=(RequestCancellationAtBoundary(), cancel_after_boundary)),
    Transition("DrainQueuedRun", "DrainQueuedRun",
        lambda h, _: h.phase is RETIRED,
        lambda h, a: replace(h, phase=RUNNING, current_run_id=a.run, pre_run_phase=RETIRED),
        (SubmitRunPrimitive(),)),
)
# fmt: on

LIFECYCLE = Machine(
    "session_lifecycle",
    handle="SessionLifecycle",
    phases=tuple(HostPhase),
    initial=SessionHost(),
    inputs=_INPUTS,
    rows=_TRANSITIONS,
    invariants=HOST_INVARIANTS,
)
