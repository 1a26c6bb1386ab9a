"""session_context: when a session's context was last changed, as a watermark that only rises.

A tick that is not newer is refused, so whoever reports one twice, or late, disturbs nobody. Times
are the caller's; observers and what they do with a tick are the shell's.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect
from rookery.actors.kernel.machines.session_host import LIVE, Host
from rookery.schemas.facts import peer as facts

__all__ = ["CONTEXT", "Context", "ContextPhase", "SessionContextAdvanced"]


class ContextPhase(StrEnum):
    """There is only one."""

    TRACKING = "Tracking"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """The watermark of one session."""

    host: Host = Host()
    phase: ContextPhase = ContextPhase.TRACKING
    last_updated_at_ms: int = 0


class SessionContextAdvanced(RowEffect, frozen=True, kw_only=True):
    """Whoever watches the context is to be told, once."""

    updated_at_ms: int


def newer(context: Context, asked: facts.ContextAdvanced) -> bool:
    return asked.updated_at_ms > context.last_updated_at_ms and context.host.phase in LIVE


CONTEXT = Machine(
    "session_context",
    handle="SessionContextHandle",
    phases=tuple(ContextPhase),
    initial=Context(),
    inputs={"context_advanced": Input(facts.ContextAdvanced, ("updated_at_ms",))},
    rows=(
        Row(
            "ContextAdvanced",
            "context_advanced",
            newer,
            lambda context, asked: replace(context, last_updated_at_ms=asked.updated_at_ms),
            (lambda _, asked: SessionContextAdvanced(updated_at_ms=asked.updated_at_ms),),
        ),
    ),
    host_phase=lambda context: context.host.phase,
)
