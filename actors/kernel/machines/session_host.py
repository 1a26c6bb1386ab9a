"""``SessionHost``: the session lifecycle state that all machines of a session read.

Admission alone writes it. Every other decider follows it from admission's facts
(``rookery.actors.admission.admission_machine.evolve_host``), so the type is part of the kernel.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

__all__ = [
    "ATTACHED",
    "DESTROYED",
    "IDLE",
    "INITIALIZING",
    "LIVE",
    "RETIRED",
    "RUNNING",
    "STOPPED",
    "HostPhase",
    "RegistrationPhase",
    "SessionHost",
    "host_of",
    "session_registered",
    "with_host",
]


class HostPhase(StrEnum):
    """Destroyed is final. A Stopped session works again only after it is unregistered."""

    INITIALIZING = "Initializing"
    IDLE = "Idle"
    ATTACHED = "Attached"
    RUNNING = "Running"
    RETIRED = "Retired"
    STOPPED = "Stopped"
    DESTROYED = "Destroyed"


INITIALIZING, IDLE, ATTACHED, RUNNING, RETIRED, STOPPED, DESTROYED = HostPhase
LIVE = (IDLE, ATTACHED, RUNNING, RETIRED, STOPPED)


class RegistrationPhase(StrEnum):
    """Whether an executor is registered for the session."""

    QUEUING = "Queuing"
    ACTIVE = "Active"


class SessionHost(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of session_lifecycle."""

    phase: HostPhase = INITIALIZING
    session_id: str | None = None
    active_runtime_id: str | None = None
    active_fence_token: int | None = None
    current_run_id: str | None = None
    pre_run_phase: HostPhase | None = None
    """The phase that the current run returns to: Idle, Attached or Retired."""
    registration_phase: RegistrationPhase = RegistrationPhase.QUEUING
    silent_intents: frozenset[str] = frozenset()


def session_registered(host: SessionHost) -> bool:
    """Guard: a session is registered."""
    return host.session_id is not None


def host_of(state: Any) -> SessionHost | None:
    """The session's host in ``state``; ``None`` for a machine without one."""
    return state if isinstance(state, SessionHost) else getattr(state, "host", None)


def with_host(state: Any, host: SessionHost) -> Any:
    """``state`` with ``host`` as the session's host."""
    if isinstance(state, SessionHost):
        return host
    return replace(state, host=host) if hasattr(state, "host") else state
