"""``PeerInteractionHandle`` and ``InteractionStreamHandle``: requests, answers, streams of answers.

    requests = PeerInteractionHandle(client, "demo")
    await requests.request_sent(corr_id, "analyst")
    await requests.outbound_state(corr_id)          # Sent; None after its end
    async for seen in requests.observe(corr_id):    # a Baseline, then the fact that ends a request
        ...

An exchange that has ended has no state; its id may be used again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from rookery.bus.client.machines.machine_handle import SessionMachineHandle
from rookery.bus.client.machines.observation import Baseline, ObservedFact
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
    PeerTerminalDisposition,
)
from rookery.schemas.machines.views import (
    InboundRequestView,
    InteractionStreamView,
    OutboundRequestView,
)

__all__ = [
    "InteractionStreamHandle",
    "PeerInteractionHandle",
    "RequestCleanupFact",
    "StreamCleanupFact",
]

RequestCleanupFact = (
    facts.ResponseEnded | facts.RequestTimedOut | facts.RequestSendFailed | facts.ResponseRejected
)
"""Facts that end a request of the session: what is held for it can be released."""

StreamCleanupFact = (
    facts.StreamCompleted | facts.StreamExpired | facts.StreamClosedEarly | facts.StreamAbandoned
)
"""Facts that end a stream."""


class PeerInteractionHandle(SessionMachineHandle):
    """Open requests, those of the session and those of peers."""

    verb: ClassVar[str] = "peers"
    codec: ClassVar[FactCodec[Any]] = FactCodec(facts.PEER_FACTS)

    async def request_sent(self, corr_id: str, to: str) -> OutboundRequestView:
        return await self._outbound("request_sent", corr_id=corr_id, dest=to)

    async def response_progress(self, corr_id: str) -> OutboundRequestView:
        return await self._outbound("response_progress", corr_id=corr_id)

    async def response_terminal(
        self, corr_id: str, disposition: PeerTerminalDisposition
    ) -> OutboundRequestView:
        return await self._outbound("response_terminal", corr_id=corr_id, disposition=disposition)

    async def request_timed_out(self, corr_id: str) -> OutboundRequestView:
        return await self._outbound("request_timed_out", corr_id=corr_id)

    async def request_received(self, corr_id: str) -> InboundRequestView:
        return await self._put(InboundRequestView, "request_received", corr_id=corr_id)

    async def response_replied(self, corr_id: str) -> InboundRequestView:
        return await self._put(InboundRequestView, "response_replied", corr_id=corr_id)

    async def outbound_state(self, corr_id: str) -> OutboundPeerRequestState | None:
        return (await self._outbound("outbound_state", corr_id=corr_id)).state

    async def inbound_state(self, corr_id: str) -> InboundPeerRequestState | None:
        return (await self._put(InboundRequestView, "inbound_state", corr_id=corr_id)).state

    def observe(
        self, corr_id: str
    ) -> AsyncGenerator[Baseline[OutboundRequestView] | ObservedFact[RequestCleanupFact], None]:
        """The request ``corr_id``, then every fact that ends a request of the session."""
        return self._observe(
            RequestCleanupFact, OutboundRequestView, "outbound_state", corr_id=corr_id
        )

    async def _outbound(self, on: str, /, **params: Any) -> OutboundRequestView:
        return await self._put(OutboundRequestView, on, **params)


class InteractionStreamHandle(SessionMachineHandle):
    """Reserved and attached streams."""

    verb: ClassVar[str] = "peers"
    codec: ClassVar[FactCodec[Any]] = FactCodec(facts.PEER_FACTS)

    async def reserved(self, corr_id: str) -> InteractionStreamView:
        return await self._stream("reserved", corr_id)

    async def attached(self, corr_id: str) -> InteractionStreamView:
        return await self._stream("attached", corr_id)

    async def completed(self, corr_id: str) -> InteractionStreamView:
        return await self._stream("completed", corr_id)

    async def expired(self, corr_id: str) -> InteractionStreamView:
        return await self._stream("expired", corr_id)

    async def closed_early(self, corr_id: str) -> InteractionStreamView:
        return await self._stream("closed_early", corr_id)

    async def state(self, corr_id: str) -> InteractionStreamState | None:
        return (await self._stream("state", corr_id)).state

    def observe(
        self, corr_id: str
    ) -> AsyncGenerator[Baseline[InteractionStreamView] | ObservedFact[StreamCleanupFact], None]:
        """The stream ``corr_id``, then every fact that ends a stream of the session."""
        return self._observe(StreamCleanupFact, InteractionStreamView, "state", corr_id=corr_id)

    async def _stream(self, on: str, corr_id: str) -> InteractionStreamView:
        return await self._put(InteractionStreamView, on, corr_id=corr_id)
