"""interaction_stream: who reads the answers to a request as they come.

A stream is reserved before the request is sent and attached when its reader comes. Expiry takes
only what nobody attached, ending only what somebody did, so of two that race one wins. An end is
told and forgotten; the id may be reserved again. The clock is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Edition, Input, Machine, Row, RowEffect
from rookery.actors.kernel.machines.session_host import LIVE, Host
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import InteractionStreamState

__all__ = [
    "ABSENT",
    "RESERVATION_TTL_MS",
    "STREAMS",
    "InteractionStreamCleanup",
    "Streams",
    "reservation_overdue",
]

ABSENT = "absent"
RESERVED, ATTACHED, COMPLETED, EXPIRED, CLOSED_EARLY, ABANDONED = InteractionStreamState
RESERVATION_TTL_MS: Final = 30_000


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """The streams somebody reads or said they will."""

    host: Host = Host()
    streams: Map[str, InteractionStreamState] = Map()


class InteractionStreamStateChanged(RowEffect, frozen=True, kw_only=True):
    """The stream has come this far."""

    corr_id: str
    new_state: InteractionStreamState


class InteractionStreamCleanup(RowEffect, frozen=True, kw_only=True):
    """Nobody needs what was kept for the stream any more."""

    corr_id: str


class AbandonedStreamCleanup(
    InteractionStreamCleanup, frozen=True, kw_only=True, tag="InteractionStreamCleanup"
):
    """The same, of a stream that was given up."""

    abandon_reason: str


Effect = Callable[[Streams, Any], RowEffect]


def stands(*states: InteractionStreamState) -> Callable[[Streams, Any], bool]:
    return lambda s, asked: s.streams.get(asked.corr_id) in states and s.host.phase in LIVE


def becomes(state: InteractionStreamState) -> Callable[[Streams, Any], Streams]:
    return lambda s, asked: replace(s, streams=s.streams.set(asked.corr_id, state))


def end(s: Streams, asked: Any) -> Streams:
    if asked.corr_id not in s.streams:
        return s
    return replace(s, streams=s.streams.delete(asked.corr_id))


def tell(state: InteractionStreamState) -> Effect:
    return lambda _, asked: InteractionStreamStateChanged(corr_id=asked.corr_id, new_state=state)


def clean_up(_: Streams, asked: Any) -> RowEffect:
    return InteractionStreamCleanup(corr_id=asked.corr_id)


def clean_up_abandoned(_: Streams, asked: facts.StreamAbandoned) -> RowEffect:
    return AbandonedStreamCleanup(corr_id=asked.corr_id, abandon_reason=asked.reason)


def only_open_streams_are_kept(s: Streams) -> bool:
    return not any(state.is_terminal for state in s.streams.values())


# fmt: off
_ROWS = (
    Row("Reserved", "reserved",
        lambda s, a: a.corr_id not in s.streams and s.host.phase in LIVE,
        becomes(RESERVED), (tell(RESERVED),)),
    Row("Attached", "attached", stands(RESERVED),
        becomes(ATTACHED), (tell(ATTACHED),)),
    Row("Completed", "completed", stands(ATTACHED),
        end, (tell(COMPLETED), clean_up)),
    Row("Expired", "expired", stands(RESERVED),
        end, (tell(EXPIRED), clean_up)),
    Row("ClosedEarly", "closed_early", stands(ATTACHED),
        end, (tell(CLOSED_EARLY), clean_up)),
    Row("Abandoned", "abandoned", stands(RESERVED, ATTACHED),
        end, (tell(ABANDONED), clean_up_abandoned), Edition.HEAD),
)
# fmt: on

STREAMS = Machine(
    "interaction_stream",
    handle="InteractionStreamHandle",
    phases=(ABSENT, RESERVED, ATTACHED),
    initial=Streams(),
    inputs={
        "reserved": Input(facts.StreamReserved, ("corr_id",)),
        "attached": Input(facts.StreamAttached, ("corr_id",)),
        "completed": Input(facts.StreamCompleted, ("corr_id",)),
        "expired": Input(facts.StreamExpired, ("corr_id",)),
        "closed_early": Input(facts.StreamClosedEarly, ("corr_id",)),
        "abandoned": Input(facts.StreamAbandoned, ("corr_id", "reason")),
    },
    rows=_ROWS,
    invariants=(only_open_streams_are_kept,),
    phase=lambda s, asked: s.streams.get(asked.corr_id, ABSENT),
    host_phase=lambda s: s.host.phase,
)


def reservation_overdue(reserved_at_ms: int, now_ms: int) -> bool:
    """Whether a reservation nobody attached to is to expire, and with it a request it was for."""
    return now_ms - reserved_at_ms > RESERVATION_TTL_MS
