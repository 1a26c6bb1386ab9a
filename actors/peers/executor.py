"""The executor of peers: signs envelopes and publishes them, and arms the timers of requests.

Every effect may be performed again after a crash, and every envelope be published twice: it is the
same bytes under one id, and its receiver admits it once. Runs on the bus's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints
from rookery.actors.messages import CancelHandler, HandlerCancelled, HandlerEnded, ReportItemHandled
from rookery.actors.peers.effects import (
    ArmDrainTimer,
    ArmExpiryTimer,
    ArmRequestTimer,
    ArmStreamTimer,
    CancelRequestTimer,
    CancelStreamTimer,
    DeliverEnvelope,
    DeliveryReported,
    EnvelopeDelivered,
    EnvelopeFailed,
    StopHandler,
)
from rookery.bus.ports import Backoff, Blobs, EnvelopeProof, Timer, Timers
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.peers.envelope import OutboxEnvelope
from rookery.schemas.peers.exchanges import PeerDue
from rookery.schemas.peers.roster import ROSTER_KEY
from rookery.schemas.run import RunResult

__all__ = ["EnvelopePublisher", "PeerExecutor"]

log = logging.getLogger(__name__)

FAMILY: Final = "peer"
BACKOFF_S: Final = (0.25, 30.0)
IN_FLIGHT_MAX: Final = 64


class EnvelopePublisher(Protocol):
    """Publishes to an inbox of this server."""

    async def submit(
        self,
        verb: str,
        key: str,
        body: bytes,
        *,
        message_id: str,
        proof: EnvelopeProof,
        realm: str,
    ) -> int:
        """Returns once the inbox of that realm has it; ``Failed`` if that is not known."""

    async def give_to_client(
        self, client: str, body: bytes, *, message_id: str, proof: EnvelopeProof
    ) -> None:
        """Returns once a client of the realm that listens has it; ``Failed`` if none listens."""


@dataclass(kw_only=True)
class PeerExecutor:
    """One per node."""

    ask: AskActor
    timers: Timers
    blobs: Blobs
    publisher: EnvelopePublisher
    prove: Callable[[str, OutboxEnvelope], Awaitable[EnvelopeProof]]
    """Signs an envelope of a session; ``VAULT_KEY_MISSING``."""
    deliver_to_agent: Callable[[DeliverEnvelope], Awaitable[None]]
    """Sends a message to an agent elsewhere, and reports what has become of it."""
    now_ms: Callable[[], int]
    failpoints: Failpoints = field(default_factory=Failpoints)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(IN_FLIGHT_MAX))
    _lanes: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """One envelope at a time from one session to one peer, so that they arrive in order."""

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            DeliverEnvelope: self.deliver,
            ArmRequestTimer: self.arm_timer,
            CancelRequestTimer: self.cancel_timer,
            ArmStreamTimer: self.arm_stream_timer,
            CancelStreamTimer: self.cancel_stream_timer,
            ArmDrainTimer: self.arm_drain_timer,
            ArmExpiryTimer: self.arm_expiry_timer,
            StopHandler: self.stop_handler,
            ReportItemHandled: self.report_handled,
        }

    async def deliver(self, effect: DeliverEnvelope) -> None:
        """Publish until an inbox has the envelope, or its time is over; then report which."""
        sent = effect.sent
        name = f"{effect.session}>{sent.to}@{sent.alias}"
        lock = self._lanes.setdefault(name, asyncio.Lock())
        async with lock:
            if sent.is_agent:
                await self.deliver_to_agent(effect)
                return
            code = await self._publish(effect.session, sent)
        self.failpoints.hit("envelope_published")
        report = (
            EnvelopeFailed(item_id=sent.id, code=code)
            if code
            else EnvelopeDelivered(item_id=sent.id)
        )
        await self.ask(FAMILY, effect.session, report, DeliveryReported)
        self.failpoints.hit("delivery_recorded")

    async def _publish(self, session: str, sent: OutboxEnvelope) -> str:
        """Empty once an inbox has it, else why none ever will."""
        pause = Backoff(*BACKOFF_S)
        while True:
            try:
                async with self._places:
                    proof = await self.prove(session, sent)
                    self.failpoints.hit("envelope_signed")
                    await self.publish_once(self.publisher, sent, proof)
                return ""
            except Failed as failure:
                error: CodedError = failure
            except Refused as refusal:
                if refusal.code != "VAULT_KEY_MISSING":
                    return refusal.code
                error = refusal
            if self.now_ms() >= sent.expires_at_ms:
                return error.code
            log.info("envelope not delivered yet", extra={"code": error.code, "to": sent.alias})
            await asyncio.sleep(pause.next_s())

    @staticmethod
    async def publish_once(
        publisher: EnvelopePublisher, sent: OutboxEnvelope, proof: EnvelopeProof
    ) -> None:
        """``Failed`` unless it is known that the envelope has arrived."""
        body = sent.text.encode()
        if sent.is_client:
            await publisher.give_to_client(sent.to, body, message_id=sent.id, proof=proof)
            return
        await publisher.submit(
            "envelope", sent.to, body, message_id=sent.id, proof=proof, realm=sent.alias
        )

    async def arm_timer(self, effect: ArmRequestTimer) -> None:
        due = PeerDue(request_id=effect.corr_id)
        await self._arm(_timer_id(effect.corr_id), effect.session, effect.due_ms, due)

    async def arm_stream_timer(self, effect: ArmStreamTimer) -> None:
        due = PeerDue(stream_id=effect.corr_id)
        await self._arm(_stream_timer_id(effect.corr_id), effect.session, effect.due_ms, due)

    async def cancel_stream_timer(self, effect: CancelStreamTimer) -> None:
        await self.timers.cancel(_stream_timer_id(effect.corr_id))

    async def arm_drain_timer(self, effect: ArmDrainTimer) -> None:
        """A later timer of the drain takes the place of an earlier one."""
        due = PeerDue(drain_due_ms=effect.due_ms)
        await self._arm(f"drain-{effect.session}", effect.session, effect.due_ms, due)

    async def arm_expiry_timer(self, effect: ArmExpiryTimer) -> None:
        """A later end of the same entry takes the place of an earlier one."""
        due = PeerDue(alias=effect.alias)
        await self._arm(f"expiry-{effect.alias}", ROSTER_KEY, effect.due_ms, due)

    async def stop_handler(self, effect: StopHandler) -> None:
        cancel = CancelHandler(item_id=effect.item_id)
        await self.ask("session", effect.session, cancel, HandlerCancelled)

    async def report_handled(self, effect: ReportItemHandled) -> None:
        """Respond to an item with the result of its run. Idempotent: an item has one end."""
        result = effect.result
        if effect.result_blob:
            result = msgspec.json.decode(await self.blobs.get(effect.result_blob), type=RunResult)
        ended = HandlerEnded(item_id=effect.item_id, run_id=effect.run_id, result=result)
        await self.ask(FAMILY, effect.session, ended, DeliveryReported)
        self.failpoints.hit("item_handled")

    async def cancel_timer(self, effect: CancelRequestTimer) -> None:
        await self.timers.cancel(_timer_id(effect.corr_id))

    async def _arm(self, id_: str, session: str, due_ms: int, due: PeerDue) -> None:
        timer = Timer(id=id_, due_ms=due_ms, verb="peer_due", key=session, body=encode_json(due))
        await self.timers.arm(timer)


def _stream_timer_id(corr_id: str) -> str:
    return f"stream-{corr_id}"


def _timer_id(corr_id: str) -> str:
    return f"request-{corr_id}"
