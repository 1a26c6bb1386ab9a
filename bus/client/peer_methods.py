"""The client's methods for peers: send in the name of a session, and wait for the response."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from msgspec import UNSET

from rookery.bus.ports import JournalReads
from rookery.schemas.codec import fact_tag
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import PeerResponseProgressProjectionPhase, ResponseStatus
from rookery.schemas.peers.envelope import PeerFailure
from rookery.schemas.peers.exchanges import (
    EnvelopeReceipt,
    ExchangeList,
    ExchangesQuery,
    FollowExchange,
    PeerResponse,
    SendEnvelope,
    StreamView,
    response_fault,
)
from rookery.schemas.peers.items import PublishEvent, Responder, ResponderView, SetResponder

__all__ = ["PeersMixin"]

_TIMED_OUT: Final = fact_tag(facts.RequestTimedOut)
_NOT_SENT: Final = fact_tag(facts.RequestSendFailed)
_ENDS: Final = frozenset({fact_tag(facts.ResponseEnded), _TIMED_OUT, _NOT_SENT})
_REPLIES: Final = {fact_tag(facts.ResponseReplied), fact_tag(facts.RequestDeclined)}
_EXCHANGE_ENDS: Final = _ENDS | _REPLIES
"""Of requests of the session, and to it."""
_STREAM_ENDS: Final = frozenset(
    fact_tag(kind)
    for kind in (
        facts.StreamCompleted,
        facts.StreamExpired,
        facts.StreamClosedEarly,
        facts.StreamAbandoned,
    )
)
_NAMES_OF_REQUEST: Final = ("corr_id", "in_reply_to", "item_id")


class PeersMixin(ABC):
    """The part of ``Client`` for peers. An address is ``SESSION@ALIAS``, or a session here."""

    @property
    @abstractmethod
    def journal(self) -> JournalReads: ...

    @abstractmethod
    async def ask(
        self, verb: str, key: str, body: object = None, *, message_id: str | None = None
    ) -> dict[str, Any]:
        """Send a request and return its durable reply."""

    @abstractmethod
    def events(
        self,
        family: str | None = None,
        key: str | None = None,
        run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Facts above sequence ``after``, then live ones."""

    async def send_message(
        self,
        session: str,
        to: str,
        body: object,
        *,
        thread: str | None = None,
        in_reply_to: str | None = None,
        message_id: str | None = None,
    ) -> EnvelopeReceipt:
        """Send a message in the name of a session; it is on record when this returns.
        ``in_reply_to``: the request that asks for more, of either side."""
        replied = in_reply_to or UNSET
        sending = SendEnvelope(to=to, body=body, thread=thread or UNSET, in_reply_to=replied)
        return await self._send(session, sending, message_id)

    async def send_response(
        self,
        session: str,
        request_id: str,
        *,
        result: object = UNSET,
        error: PeerFailure | None = None,
        phase: PeerResponseProgressProjectionPhase | None = None,
        message_id: str | None = None,
    ) -> EnvelopeReceipt:
        """Respond to a peer's request: with a result or an error once, with a phase at any time."""
        status = ResponseStatus.COMPLETED if error is None else ResponseStatus.FAILED
        sending = SendEnvelope(
            in_reply_to=request_id,
            status=status if phase is None else ResponseStatus.ACCEPTED,
            phase=phase or UNSET,
            result=result,
            error=error or UNSET,
        )
        return await self._send(session, sending, message_id)

    async def send_request(
        self,
        session: str,
        to: str,
        intent: str,
        params: object = UNSET,
        *,
        timeout_s: float = 86_400.0,
        thread: str | None = None,
        stream: bool = False,
        message_id: str | None = None,
    ) -> EnvelopeReceipt:
        """Send a request in the name of a session; ``wait_for_response`` has its result. With
        ``stream`` a client attaches to its responses within 30 s: ``follow_exchange``."""
        sending = SendEnvelope(
            to=to,
            intent=intent,
            params=params,
            timeout_ms=max(1, int(timeout_s * 1_000)),
            thread=thread or UNSET,
            stream=stream,
        )
        return await self._send(session, sending, message_id)

    async def ask_peer(
        self,
        session: str,
        to: str,
        intent: str,
        params: object = UNSET,
        *,
        timeout_s: float = 86_400.0,
    ) -> Any:
        """Send a request and wait for the result; ``Refused`` PEER_FAILED, PEER_DECLINED,
        PEER_TIMED_OUT or PEER_SEND_FAILED without one. The request waits on without this client."""
        after = await self.journal.end()
        receipt = await self.send_request(session, to, intent, params, timeout_s=timeout_s)
        return await self.wait_for_response(session, receipt.id, after=after)

    async def wait_for_response(self, session: str, request_id: str, *, after: int = 0) -> Any:
        """The result of a request that was sent after this sequence of the journal."""
        async with aclosing(self.events("peer", session, after=after)) as found:
            async for fact in found:
                if fact["type"] in _ENDS and fact.get("corr_id") == request_id:
                    return _result_of(fact)
        raise Failed("NO_ANSWER", "the facts of the session ended")

    async def attach_reader(
        self, session: str, request_id: str, reader: str, *, leave: bool = False
    ) -> StreamView:
        """Read the stream of a request under this name, on any connection; or ``leave`` it."""
        body = FollowExchange(request_id=request_id, reader=reader, leave=leave)
        return msgspec.convert(await self.ask("exchange", session, body), StreamView)

    async def follow_exchange(
        self, session: str, request_id: str, *, reader: str = "", after: int = 0
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The facts of a request above this sequence of the journal, until its end. A ``reader``
        is attached to its stream, and comes back under its name with the last ``seq`` it has."""
        ends = _EXCHANGE_ENDS
        if reader:
            try:
                await self.attach_reader(session, request_id, reader)
                ends = _STREAM_ENDS
            except Refused as refusal:
                if refusal.code != "PEER_STREAM_NOT_FOUND":
                    raise  # It has ended, or has never been: its facts are there all the same.
        async with aclosing(self.events("peer", session, after=after)) as found:
            async for fact in found:
                if request_id in (fact.get(name) for name in _NAMES_OF_REQUEST):
                    yield fact
                    if fact["type"] in ends:
                        return

    async def serve_peers(
        self, session: str, responder: Responder, *, message_id: str | None = None
    ) -> ResponderView:
        """Let a program answer the peers of a session, without this client."""
        body = SetResponder(responder=responder)
        found = await self.ask("respond", session, body, message_id=message_id)
        return msgspec.convert(found, ResponderView)

    async def stop_serving(self, session: str, *, now: bool = False) -> ResponderView:
        """Hand no more items to that program; ``now`` cancels its present run, too."""
        return msgspec.convert(
            await self.ask("respond", session, SetResponder(now=now)), ResponderView
        )

    async def publish_event(
        self, session: str, source: str, body: object = None, *, message_id: str | None = None
    ) -> EnvelopeReceipt:
        """Give an event from outside to a session: a program receives it, or the responder."""
        event = PublishEvent(source=source, body=body)
        found = await self.ask("event", session, event, message_id=message_id)
        return msgspec.convert(found, EnvelopeReceipt)

    async def exchanges(self, session: str) -> ExchangeList:
        """The open requests of a session, and those of peers to it."""
        return msgspec.convert(await self.ask("exchanges", session, ExchangesQuery()), ExchangeList)

    async def _send(
        self, session: str, sending: SendEnvelope, message_id: str | None
    ) -> EnvelopeReceipt:
        receipt = await self.ask("send", session, sending, message_id=message_id)
        return msgspec.convert(receipt, EnvelopeReceipt)


def _result_of(fact: dict[str, Any]) -> Any:
    corr_id = fact["corr_id"]
    if fact["type"] == _TIMED_OUT:
        raise Refused("PEER_TIMED_OUT", f"no response to {corr_id} came in time")
    if fact["type"] == _NOT_SENT:
        raise Refused("PEER_SEND_FAILED", f"{corr_id} did not arrive: {fact.get('code', '')}")
    response = msgspec.convert(fact["response"], PeerResponse)
    if (fault := response_fault(response)) is not None:
        raise fault
    return None if response.result is UNSET else response.result
