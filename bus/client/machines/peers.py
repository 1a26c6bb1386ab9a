"""The handles of a session and its peers.

``PeerCommsHandle``, ``CommsDrainHandle`` and ``SessionContextHandle``:

    comms = PeerCommsHandle(client, "demo")
    admission = await comms.classify_external_envelope(envelope)
    admission.rendered_text                         # as the session's conversation shows it

    context = SessionContextHandle(client, "demo")
    await context.context_advanced(now_ms)          # False if the tick is not newer

``PeerInteractionHandle`` and ``InteractionStreamHandle``: requests, answers, streams of answers.

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

import msgspec

from rookery.bus.client.machines.machine_handle import (
    Baseline,
    ObservedFact,
    SessionMachineHandle,
    effects_of,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
    PeerIngressAdmission,
    PeerIngressEnvelopeFacts,
    PeerIngressPlainEventFacts,
    PeerTerminalDisposition,
)
from rookery.schemas.machines.peer_admission import (
    admit_envelope,
    admit_plain_event,
    classification_params,
)
from rookery.schemas.machines.transition import PeerIngressClassified
from rookery.schemas.machines.views import (
    CommsDrainView,
    InboundRequestView,
    InteractionStreamView,
    OutboundRequestView,
    PeerIngressView,
    SessionContextView,
)

__all__ = [
    "CommsDrainHandle",
    "InteractionStreamHandle",
    "PeerCommsHandle",
    "PeerInteractionHandle",
    "RequestCleanupFact",
    "SessionContextHandle",
    "StreamCleanupFact",
]


class CommsDrainHandle(SessionMachineHandle):
    """Whether the task that drains the session's peer traffic is wanted."""

    verb: ClassVar[str] = "peers"

    async def ensure_drain_running(self) -> CommsDrainView:
        return await self._drain("ensure_drain_running")

    async def spawn_drain(self, mode: DrainMode) -> CommsDrainView:
        return await self._drain("spawn_drain", mode=mode)

    async def stop_drain(self) -> CommsDrainView:
        return await self._drain("stop_drain")

    async def drain_exited_clean(self) -> CommsDrainView:
        return await self._drain("drain_exited_clean")

    async def drain_exited_respawnable(self) -> CommsDrainView:
        return await self._drain("drain_exited_respawnable")

    async def notify_drain_exited(self, reason: DrainExitReason) -> CommsDrainView:
        return await self._drain("notify_drain_exited", reason=reason)

    async def _drain(self, on: str, /, **params: Any) -> CommsDrainView:
        return await self._put(CommsDrainView, on, **params)


class PeerCommsHandle(SessionMachineHandle):
    """Classifies items from outside before a session acts on them; a refused item is not
    admitted. The contents of an envelope stay with the caller."""

    verb: ClassVar[str] = "peers"

    async def classify_external_envelope(
        self, facts: PeerIngressEnvelopeFacts
    ) -> PeerIngressAdmission:
        params = classification_params(facts)
        return admit_envelope(facts, await self._classify("classify_external_envelope", params))

    async def classify_plain_event(self, facts: PeerIngressPlainEventFacts) -> PeerIngressAdmission:
        params = {"source_name": facts.source_name}
        return admit_plain_event(facts, await self._classify("classify_plain_event", params))

    async def set_peer_ingress_context(self, keep_alive: bool) -> PeerIngressView:
        return await self._put(PeerIngressView, "set_peer_ingress_context", keep_alive=keep_alive)

    async def _classify(self, on: str, params: dict[str, Any]) -> PeerIngressClassified:
        view = await self._put(PeerIngressView, on, **params)
        name = PeerIngressClassified.__name__
        effects = effects_of(view.effects, on)
        classified = next(effect for effect in effects if effect["name"] == name)
        return msgspec.convert(classified, PeerIngressClassified)


class SessionContextHandle(SessionMachineHandle):
    """The watermark of the session's context."""

    verb: ClassVar[str] = "peers"
    codec: ClassVar[FactCodec[Any]] = FactCodec(facts.PEER_FACTS)

    async def context_advanced(self, updated_at_ms: int) -> bool:
        """``False`` for a tick that is not newer."""
        return await self._try(SessionContextView, "context_advanced", updated_at_ms=updated_at_ms)

    async def current_watermark_ms(self) -> int:
        return (await self._put(SessionContextView, "current_watermark_ms")).watermark_ms

    def observe(
        self,
    ) -> AsyncGenerator[Baseline[SessionContextView] | ObservedFact[facts.ContextAdvanced], None]:
        """The watermark, then every newer tick."""
        return self._observe(facts.ContextAdvanced, SessionContextView, "current_watermark_ms")


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
