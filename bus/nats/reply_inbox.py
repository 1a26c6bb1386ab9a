"""Subjects of our own that answers come back to, one subscription for all of them.

A reply is expected for as long as somebody holds it; what comes later is dropped. It knows what an
answer looks like on the wire and refuses to know what was asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from rookery.bus.commands.headers import CODE
from rookery.bus.nats.connection import Connection, Message, Subscription, header_value
from rookery.bus.nats.jetstream_api import NO_RESPONDERS, status_of
from rookery.schemas.errors import CODES, CodedError, Failed, Refused

__all__ = ["PendingReply", "ReplyInbox", "decode_reply"]

_CODE = CODE.encode()

_SERVER_SIDE_CODES = frozenset(
    {
        "CHAIN_BROKEN",
        "COMMAND_QUARANTINED",
        "CONFLICT",
        "FACT_INVALID",
        "FACT_UNKNOWN",
        "FACT_VERSION_UNSUPPORTED",
        "JOURNAL_FULL",
        "NODE_DRAINING",
        "NODE_FAILED",
        "NODE_OVERLOADED",
        "PARTITION_UNOWNED",
        "SEALED_UNSUPPORTED",
        "SERVER_UNREACHABLE",
    }
)
"""Codes of answers that say nothing against the request."""


class PendingReply:
    """One subject, answered once or more often."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self._arrived: deque[Message] = deque()
        self._changed = asyncio.Event()

    async def next(self, patience_s: float) -> Message | None:
        """The next answer; ``None`` if it is time to ask again: there was silence, or the
        connection has gone or come back."""
        try:
            async with asyncio.timeout(patience_s):
                await self._changed.wait()
        except TimeoutError:
            return None
        message = self._arrived.popleft() if self._arrived else None
        if not self._arrived:
            self._changed.clear()
        return message

    def put(self, message: Message) -> None:
        self._arrived.append(message)
        self._changed.set()

    def wake(self) -> None:
        """Whoever waits, or will, has to ask again."""
        self._changed.set()


class ReplyInbox:
    """All replies expected on a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._numbers = count(1)
        self._expected: WeakValueDictionary[str, PendingReply] = WeakValueDictionary()
        self._prefix = ""
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        self._prefix = self._connection.client.new_inbox()
        self._subscription = await self._connection.subscribe(f"{self._prefix}.*", self._route)
        self._connection.on_reconnect.append(self._wake)
        self._connection.on_disconnect.append(self._wake)

    async def close(self) -> None:
        if self._subscription is not None:
            self._connection.on_reconnect.remove(self._wake)
            self._connection.on_disconnect.remove(self._wake)
            await self._subscription.cancel()
            self._subscription = None

    def expect(self) -> PendingReply:
        """A reply under a subject nobody else has."""
        reply = PendingReply(f"{self._prefix}.{next(self._numbers)}")
        self._expected[reply.subject] = reply
        return reply

    def _route(self, messages: list[Message]) -> None:
        for message in messages:
            reply = self._expected.get(message.subject)
            if reply is not None:
                reply.put(message)

    def _wake(self) -> None:
        """Answers sent while we were away are lost: ask again for all of them."""
        for reply in list(self._expected.values()):
            reply.wake()


def decode_reply(message: Message) -> dict[str, Any]:
    """What was answered; raises what was answered if that is an error."""
    if status_of(message) == NO_RESPONDERS:
        raise Failed("PARTITION_UNOWNED", "no node of this realm answers", hint="rookery up")
    try:
        answer = msgspec.json.decode(message.body, type=dict[str, Any])
        if header_value(message.header, _CODE):
            raise _coded_error(**answer["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        raise Failed("INVALID_JSON", f"this is no answer: {message.body[:80]!r}") from None
    return answer


def _coded_error(*, code: str, message: str, hint: str | None = None, **_: object) -> CodedError:
    if code not in CODES:
        return Failed("UNKNOWN_CODE", f"{code}: {message}", hint=hint or "")
    kind = Failed if code in _SERVER_SIDE_CODES else Refused
    return kind(code, message, hint=hint or "")
