"""Publishing to a stream, repeated until the server acks.

A lost ack looks like a lost message, so a message may be stored twice: commands have an id,
schedules replace each other, and the stream of dead letters has a duplicate window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rookery.bus.jetstream_api import AckVerdict, decode_ack
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.subjects import hide_tokens
from rookery.schemas.errors import Failed, Refused

__all__ = ["publish", "retry_until_deadline"]

T = TypeVar("T")

_DEADLINE_S = 10.0
_TRY_S = 2.0
_PAUSE_S = 0.1


async def publish(connection: Connection, message: Outgoing) -> int:
    """Store ``message`` in the stream of its subject; returns its sequence.

    ``Failed`` SERVER_UNREACHABLE or JOURNAL_FULL, ``Refused`` PAYLOAD_TOO_LARGE.
    """
    reply = await retry_until_deadline(lambda: connection.request(message, timeout_s=_TRY_S))
    ack = decode_ack(reply)
    text = f"JetStream error {ack.description} for {hide_tokens(message.subject)[:200]}"
    match ack.verdict:
        case AckVerdict.STORED:
            return ack.sequence
        case AckVerdict.TOO_LARGE:
            raise Refused("PAYLOAD_TOO_LARGE", text)
        case AckVerdict.FULL:
            raise Failed("JOURNAL_FULL", text)
        case _:
            raise Failed("STREAM_MISMATCH", text)


async def retry_until_deadline(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``request`` for up to ten seconds; then raise its last ``Failed``."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _DEADLINE_S
    while True:
        try:
            return await request()
        except Failed:
            if loop.time() + _PAUSE_S >= deadline_s:
                raise
        await asyncio.sleep(_PAUSE_S)
