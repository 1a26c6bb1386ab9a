"""Requests of clients to the read and upload services, repeated until a node has answered.

A read changes nothing and an upload's pieces replace themselves, so any request may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from rookery.bus.backoff import Backoff
from rookery.bus.nats import (
    NO_RESPONDERS,
    Connection,
    DirectPage,
    Message,
    Outgoing,
    exchange,
    header_value,
    page_of,
    status_of,
)
from rookery.bus.reads.queries import CODE_HEADER, is_page_end
from rookery.schemas.errors import CODES, CodedError, Failed, Refused

__all__ = ["PATIENCE_S", "NodeRequests"]

T = TypeVar("T")

PATIENCE_S: Final = 30.0
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0


class NodeRequests:
    """Asks the nodes of a realm over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ask(
        self, subject: str, body: bytes = b"", *, patience_s: float = PATIENCE_S
    ) -> Message:
        """The reply; ``Failed`` if no node has replied after ``patience_s``."""

        async def once() -> Message:
            return (await self._exchange(subject, body, _is_any))[-1]

        return await _retry(once, patience_s)

    async def page(
        self, subject: str, body: bytes, *, patience_s: float = PATIENCE_S
    ) -> DirectPage:
        """The messages of a page."""

        async def once() -> DirectPage:
            return page_of(await self._exchange(subject, body, is_page_end))

        return await _retry(once, patience_s)

    async def _exchange(
        self, subject: str, body: bytes, is_last: Callable[[Message], bool]
    ) -> list[Message]:
        replies = await exchange(self._connection, Outgoing(subject, body), is_last)
        _raise_error(replies[-1])
        return replies


async def _retry(attempt: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Repeat while the errors may pass; then raise the last one."""
    loop, pause = asyncio.get_running_loop(), Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
    end_s = loop.time() + patience_s
    while True:
        try:
            return await attempt()
        except Failed as error:
            if not CODES[error.code].retryable or loop.time() >= end_s:
                raise
        await asyncio.sleep(pause.next_s())


def _is_any(_: Message) -> bool:
    return True


def _raise_error(message: Message) -> None:
    """Raise the error that the message is, if it is one."""
    if status_of(message) == NO_RESPONDERS:
        raise Failed("PARTITION_UNOWNED", "no node of this realm answers", hint="rookery up")
    if code := header_value(message.header, CODE_HEADER):
        try:
            text = msgspec.json.decode(message.body, type=dict[str, Any])["error"]["message"]
        except (msgspec.DecodeError, KeyError, TypeError):
            text = "the node gave no reason"
        raise _coded(code, str(text))


def _coded(code: str, text: str) -> CodedError:
    if code not in CODES:
        return Failed("UNKNOWN_CODE", f"{code}: {text}")
    return (Failed if CODES[code].retryable else Refused)(code, text)
