"""session_context: a rising watermark of the last change of a session's context.

A tick that is not newer is refused, so late and repeated ticks have no effect. The caller passes
the times.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    LIVE,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
)
from rookery.schemas.facts import peer as facts

__all__ = ["CONTEXT", "ContextPhase", "SessionContext", "SessionContextAdvanced"]


class ContextPhase(StrEnum):
    """The only phase."""

    TRACKING = "Tracking"


class SessionContext(msgspec.Struct, frozen=True, kw_only=True):
    """The watermark of one session."""

    host: SessionHost = SessionHost()
    phase: ContextPhase = ContextPhase.TRACKING
    last_updated_at_ms: int = 0


class SessionContextAdvanced(TransitionEffect, frozen=True, kw_only=True):
    """Notify the observers of the context once."""

    updated_at_ms: int


def is_newer(context: SessionContext, fact: facts.ContextAdvanced) -> bool:
    return fact.updated_at_ms > context.last_updated_at_ms and context.host.phase in LIVE


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
            lambda context, fact: replace(context, last_updated_at_ms=fact.updated_at_ms),
            (lambda _, fact: SessionContextAdvanced(updated_at_ms=fact.updated_at_ms),),
        ),
    ),
    host_phase=lambda context: context.host.phase,
)
