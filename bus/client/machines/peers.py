"""``PeerCommsHandle``, ``CommsDrainHandle`` and ``SessionContextHandle``: a session and its peers.

comms = PeerCommsHandle(client, "demo")
admission = await comms.classify_external_envelope(envelope)
admission.rendered_text                        # as the session's conversation shows it

context = SessionContextHandle(client, "demo")
await context.context_advanced(now_ms)         # False if the tick is not newer
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import msgspec

from rookery.bus.client.machines.machine_handle import SessionMachineHandle, effects_of
from rookery.bus.client.machines.observation import Baseline, ObservedFact
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerIngressAdmission,
    PeerIngressEnvelopeFacts,
    PeerIngressPlainEventFacts,
)
from rookery.schemas.machines.peer_admission import (
    admit_envelope,
    admit_plain_event,
    classification_params,
)
from rookery.schemas.machines.transition import PeerIngressClassified
from rookery.schemas.machines.views import CommsDrainView, PeerIngressView, SessionContextView

__all__ = ["CommsDrainHandle", "PeerCommsHandle", "SessionContextHandle"]


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
