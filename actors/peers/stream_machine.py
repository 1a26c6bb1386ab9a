"""interaction_stream: the readers of the answers to a request.

A stream is reserved before the request is sent and attached when its reader arrives. Expiry ends
only unattached streams, completion only attached ones, so exactly one of two racing inputs wins. An
ended stream is announced and dropped; its id may be reserved again. The caller has the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    LIVE,
    Edition,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
)
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import InteractionStreamState

__all__ = [
    "ABSENT",
    "RESERVATION_TTL_MS",
    "STREAMS",
    "InteractionStreamCleanup",
    "InteractionStreams",
    "reservation_overdue",
]

ABSENT = "absent"
RESERVED, ATTACHED, COMPLETED, EXPIRED, CLOSED_EARLY, ABANDONED = InteractionStreamState
RESERVATION_TTL_MS: Final = 30_000


class InteractionStreams(msgspec.Struct, frozen=True, kw_only=True):
    """Reserved and attached streams."""

    host: SessionHost = SessionHost()
    streams: Map[str, InteractionStreamState] = Map()


class InteractionStreamStateChanged(TransitionEffect, frozen=True, kw_only=True):
    """The stream has this state."""

    corr_id: str
    new_state: InteractionStreamState


class InteractionStreamCleanup(TransitionEffect, frozen=True, kw_only=True):
    """Release the resources of the stream."""

    corr_id: str


class AbandonedStreamCleanup(
    InteractionStreamCleanup, frozen=True, kw_only=True, tag="InteractionStreamCleanup"
):
    """Release the resources of an abandoned stream."""

    abandon_reason: str


EffectFactory = Callable[[InteractionStreams, Any], TransitionEffect]


def is_in(*states: InteractionStreamState) -> Callable[[InteractionStreams, Any], bool]:
    return lambda s, fact: s.streams.get(fact.corr_id) in states and s.host.phase in LIVE


def set_state(
    state: InteractionStreamState,
) -> Callable[[InteractionStreams, Any], InteractionStreams]:
    return lambda s, fact: replace(s, streams=s.streams.set(fact.corr_id, state))


def end(s: InteractionStreams, fact: Any) -> InteractionStreams:
    if fact.corr_id not in s.streams:
        return s
    return replace(s, streams=s.streams.delete(fact.corr_id))


def emit_state(state: InteractionStreamState) -> EffectFactory:
    return lambda _, fact: InteractionStreamStateChanged(corr_id=fact.corr_id, new_state=state)


def emit_cleanup(_: InteractionStreams, fact: Any) -> TransitionEffect:
    return InteractionStreamCleanup(corr_id=fact.corr_id)


def emit_abandoned_cleanup(_: InteractionStreams, fact: facts.StreamAbandoned) -> TransitionEffect:
    return AbandonedStreamCleanup(corr_id=fact.corr_id, abandon_reason=fact.reason)


def only_open_streams_are_kept(s: InteractionStreams) -> bool:
    return not any(state.is_terminal for state in s.streams.values())


# fmt: off
_ROWS = (
    Transition("Reserved", "reserved",
        lambda s, a: a.corr_id not in s.streams and s.host.phase in LIVE,
        set_state(RESERVED), (emit_state(RESERVED),)),
    Transition("Attached", "attached", is_in(RESERVED),
        set_state(ATTACHED), (emit_state(ATTACHED),)),
    Transition("Completed", "completed", is_in(ATTACHED),
        end, (emit_state(COMPLETED), emit_cleanup)),
    Transition("Expired", "expired", is_in(RESERVED),
        end, (emit_state(EXPIRED), emit_cleanup)),
    Transition("ClosedEarly", "closed_early", is_in(ATTACHED),
        end, (emit_state(CLOSED_EARLY), emit_cleanup)),
    Transition("Abandoned", "abandoned", is_in(RESERVED, ATTACHED),
        end, (emit_state(ABANDONED), emit_abandoned_cleanup), Edition.HEAD),
)
# fmt: on

STREAMS = Machine(
    "interaction_stream",
    handle="InteractionStreamHandle",
    phases=(ABSENT, RESERVED, ATTACHED),
    initial=InteractionStreams(),
    inputs={
        "reserved": MachineInput(facts.StreamReserved, ("corr_id",)),
        "attached": MachineInput(facts.StreamAttached, ("corr_id",)),
        "completed": MachineInput(facts.StreamCompleted, ("corr_id",)),
        "expired": MachineInput(facts.StreamExpired, ("corr_id",)),
        "closed_early": MachineInput(facts.StreamClosedEarly, ("corr_id",)),
        "abandoned": MachineInput(facts.StreamAbandoned, ("corr_id", "reason")),
    },
    rows=_ROWS,
    invariants=(only_open_streams_are_kept,),
    phase=lambda s, fact: s.streams.get(fact.corr_id, ABSENT),
    host_phase=lambda s: s.host.phase,
)


def reservation_overdue(reserved_at_ms: int, now_ms: int) -> bool:
    """Whether an unattached reservation expires, and its request with it."""
    return now_ms - reserved_at_ms > RESERVATION_TTL_MS
