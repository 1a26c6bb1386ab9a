"""The host of a session: the one record all of its machines look at.

Admission is its only writer; every other concern keeps a copy from admission's facts
(``rookery.actors.admission.admission_machine.evolve_host``), so it stands here, where all of them
may know it.
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
    """Destroyed is final; from Stopped the only way back to work is to unregister the session."""

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
    """Whether somebody is there to execute."""

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
    """Where the current run returns to: Idle, Attached or Retired."""
    registration_phase: RegistrationPhase = RegistrationPhase.QUEUING
    silent_intents: frozenset[str] = frozenset()


def session_registered(host: SessionHost) -> bool:
    """Most of what a session can do needs that there is one."""
    return host.session_id is not None


def host_of(state: Any) -> SessionHost | None:
    """The session's host as ``state`` has it; ``None`` where a machine has nothing to do with it"""
    return state if isinstance(state, SessionHost) else getattr(state, "host", None)


def with_host(state: Any, host: SessionHost) -> Any:
    """``state`` with the session at ``host``."""
    if isinstance(state, SessionHost):
        return host
    return replace(state, host=host) if hasattr(state, "host") else state
