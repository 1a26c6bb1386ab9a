"""session_context: when a session's context was last changed, as a watermark that only rises.

A tick that is not newer is refused, so whoever reports one twice, or late, disturbs nobody. Times
are the caller's; observers and what they do with a tick are the shell's.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import (
    Machine,
    MachineInput,
    Transition,
    TransitionEffect,
)
from rookery.actors.kernel.machines.session_host import LIVE, SessionHost
from rookery.schemas.facts import peer as facts

__all__ = ["CONTEXT", "ContextPhase", "SessionContext", "SessionContextAdvanced"]


class ContextPhase(StrEnum):
    """There is only one."""

    TRACKING = "Tracking"


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The watermark of one session."""

    host: SessionHost = SessionHost()
    phase: ContextPhase = ContextPhase.TRACKING
    last_updated_at_ms: int = 0


class SessionContextAdvanced(TransitionEffect, frozen=True, kw_only=True):
    """Whoever watches the context is to be told, once."""

    updated_at_ms: int


def is_newer(context: SessionContext, asked: facts.ContextAdvanced) -> bool:
    return asked.updated_at_ms > context.last_updated_at_ms and context.host.phase in LIVE


CONTEXT = Machine(
    "session_context",
    handle="SessionContextHandle",
    phases=tuple(ContextPhase),
    initial=SessionContext(),
    inputs={"context_advanced": MachineInput(facts.ContextAdvanced, ("updated_at_ms",))},
    rows=(
        Transition(
            "ContextAdvanced",
            "context_advanced",
            is_newer,
            lambda context, asked: replace(context, last_updated_at_ms=asked.updated_at_ms),
            (lambda _, asked: SessionContextAdvanced(updated_at_ms=asked.updated_at_ms),),
        ),
    ),
    host_phase=lambda context: context.host.phase,
)
