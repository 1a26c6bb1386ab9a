"""Streams of the responses to a request, and the watermark of the session's context. Pure.

A stream is reserved with its request, where its sender asks for one, and waits 30 s for its reader.
A reader is attached by its name, not by its connection, so it may leave and come back, on any node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.kernel import FactBuilder
from rookery.actors.kernel.machines import LIVE
from rookery.actors.messages import BeginPeerCall
from rookery.actors.peers.state import SessionPeers
from rookery.actors.peers.stream_machine import RESERVATION_TTL_MS, reservation_overdue
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import InteractionStreamState, ResponseStatus
from rookery.schemas.peers.exchanges import FollowExchange, StreamView
from rookery.schemas.peers.gateways import ChangePushTarget
from rookery.schemas.peers.roster import REALM_NAME

if TYPE_CHECKING:
    from rookery.actors.peers.decider import PeersDecider

__all__ = [
    "attach_program",
    "context_advances",
    "expire_stream",
    "follow_stream",
    "is_read_by_program",
    "push_target",
    "stream_due_ms",
    "stream_ends",
    "stream_view",
]

ATTACHED: Final = InteractionStreamState.ATTACHED
PROGRAM: Final = "program"
"""The name of the reader of a stream that a program of the session has requested."""
_REQUEST_ENDS: Final = (
    facts.ResponseEnded,
    facts.RequestTimedOut,
    facts.RequestSendFailed,
    facts.ResponseRejected,
)
_CHANGES: Final = (facts.ItemAssigned, facts.ItemHandled, facts.ResponseEnded)
"""What a session gets to know, or has done for its peers."""


def follow_stream(
    decider: PeersDecider,
    state: SessionPeers,
    session: str,
    following: FollowExchange,
    now_ms: int,
) -> Sequence[Fact]:
    """The reader attaches, or leaves before the end. A reader that is attached attaches again
    without effect."""
    corr_id, known = following.request_id, state.readers.get(following.request_id)
    if known is None:
        raise _not_found(corr_id, "has no stream that waits for a reader")
    if known.name not in ("", following.reader):
        text = f"{known.name} reads the stream of {corr_id}"
        raise Refused("PEER_STREAM_TAKEN", text, hint=f"rookery peers follow {corr_id}")
    params = {"corr_id": corr_id}
    if following.leave:
        if not known.name:
            raise _not_found(corr_id, "has no reader that could leave")
        return decider.decide_input(state, session, "closed_early", params)
    if known.name:
        return ()
    if reservation_overdue(known.reserved_at_ms, now_ms):
        raise _not_found(corr_id, f"waited {RESERVATION_TTL_MS // 1_000} s for its reader")
    builder = FactBuilder[SessionPeers, Any](state, decider.evolve)
    (attached,) = decider.decide_input(state, session, "attached", params)
    builder.add(replace(attached, reader=following.reader))
    if corr_id not in state.requests:
        builder.facts += decider.decide_input(builder.state, session, "completed", params)
    return builder.facts


def _not_found(corr_id: str, why: str) -> Refused:
    hint = f"rookery peers follow {corr_id}"
    return Refused("PEER_STREAM_NOT_FOUND", f"request {corr_id} {why}", hint=hint)


def is_read_by_program(
    state: SessionPeers, response: facts.EnvelopeClassified, sender: str
) -> bool:
    """Whether a program reads the responses to its request, and this is one of the peer that was
    asked, or of its realm, which may only say that it failed."""
    corr_id = str(response.in_reply_to)
    known, request = state.readers.get(corr_id), state.requests.get(corr_id)
    if known is None or request is None or not known.operation_id:
        return False
    has_failed = response.response_status is ResponseStatus.FAILED
    return sender == request.address or (has_failed and sender == f"{REALM_NAME}@{request.alias}")


def attach_program(
    decider: PeersDecider, state: SessionPeers, session: str, begin: BeginPeerCall, now_ms: int
) -> Sequence[Fact]:
    """The first call that receives responses of a stream attaches its program to it."""
    corr_id = str(begin.arguments.get("in_reply_to", ""))
    known = state.readers.get(corr_id)
    if begin.name != "receive" or known is None or not known.operation_id:
        return ()
    if reservation_overdue(known.reserved_at_ms, now_ms):
        return ()
    following = FollowExchange(request_id=corr_id, reader=PROGRAM)
    return follow_stream(decider, state, session, following, now_ms)


def expire_stream(
    decider: PeersDecider, state: SessionPeers, session: str, corr_id: str, now_ms: int
) -> Sequence[Fact]:
    """No reader has come in time, so the request ends, too."""
    known = state.readers.get(corr_id)
    if known is None or known.name or not reservation_overdue(known.reserved_at_ms, now_ms):
        return ()
    params = {"corr_id": corr_id}
    left = list(decider.decide_input(state, session, "expired", params))
    if corr_id in state.requests:
        left += decider.decide_input(state, session, "request_timed_out", params)
    return left


def stream_due_ms(state: SessionPeers, corr_id: str) -> int:
    """When the reservation expires; 0 without one that waits."""
    known = state.readers.get(corr_id)
    return 0 if known is None or known.name else known.reserved_at_ms + RESERVATION_TTL_MS + 1


def stream_ends(
    decider: PeersDecider, state: SessionPeers, session: str, left: Sequence[Fact]
) -> Iterable[Fact]:
    """The ends of streams whose requests have ended; ``state`` is that after ``left``. One without
    a reader waits for it."""
    for fact in left:
        if not isinstance(fact, _REQUEST_ENDS):
            continue
        params: dict[str, Any] = {"corr_id": fact.corr_id}
        stream = state.streams.streams.get(fact.corr_id)
        if isinstance(fact, facts.RequestTimedOut) and fact.abandoned is True:
            if stream is not None:
                params |= {"reason": "the program dropped its request"}
                yield from decider.decide_input(state, session, "abandoned", params)
        elif stream is ATTACHED:
            yield from decider.decide_input(state, session, "completed", params)


def context_advances(
    decider: PeersDecider,
    state: SessionPeers,
    session: str,
    left: Sequence[Fact],
    now_ms: int,
) -> Iterable[Fact]:
    """The session's context has changed, later than before; ``state`` is that after ``left``."""
    is_later = now_ms > state.context.last_updated_at_ms and state.host.phase in LIVE
    if is_later and any(isinstance(fact, _CHANGES) for fact in left):
        params = {"updated_at_ms": now_ms}
        yield from decider.decide_input(state, session, "context_advanced", params)


def stream_view(state: SessionPeers, following: FollowExchange) -> StreamView:
    """The stream as it is now; without a state it has ended."""
    corr_id = following.request_id
    known = state.readers.get(corr_id)
    return StreamView(
        id=corr_id,
        state=state.streams.streams.get(corr_id),
        reader="" if known is None else known.name,
        request=state.outbound.pending_peer_requests.get(corr_id),
    )


def push_target(change: ChangePushTarget) -> Fact:
    """Gateways read the targets from the journal; no rule of a session depends on them."""
    corr_id, target_id = change.request_id, change.target_id
    if change.target is UNSET:
        return facts.PushTargetRemoved(corr_id=corr_id, target_id=target_id)
    return facts.PushTargetSet(corr_id=corr_id, target_id=target_id, target=change.target)
