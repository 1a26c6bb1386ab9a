"""Publishing that is done when the server says so, asked again until it does.

A lost answer cannot be told from a lost message, so what is published here may be stored twice:
commands are recognised by their id, schedules replace each other, dead letters have a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rookery.bus.nats import AckVerdict, Connection, Outgoing, decode_ack
from rookery.schemas.errors import Failed, Refused

__all__ = ["publish", "retry_until_deadline"]

T = TypeVar("T")

_PATIENCE_S = 10.0
_TRY_S = 2.0
_PAUSE_S = 0.1


async def publish(connection: Connection, message: Outgoing) -> int:
    """Store ``message`` in the stream of its subject; its sequence there.

    ``Failed`` SERVER_UNREACHABLE or JOURNAL_FULL, ``Refused`` PAYLOAD_TOO_LARGE.
    """
    answer = await retry_until_deadline(lambda: connection.request(message, timeout_s=_TRY_S))
    ack = decode_ack(answer)
    text = f"JetStream error {ack.description} for {message.subject[:200]}"
    match ack.verdict:
        case AckVerdict.STORED:
            return ack.sequence
        case AckVerdict.TOO_LARGE:
            raise Refused("PAYLOAD_TOO_LARGE", text)
        case AckVerdict.FULL:
            raise Failed("JOURNAL_FULL", text)
        case _:
            raise Failed("STREAM_MISMATCH", text)


async def retry_until_deadline(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer or ten seconds are over; then ``Failed`` as it came."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _PATIENCE_S
    while True:
        try:
            return await ask()
        except Failed:
            if loop.time() + _PAUSE_S >= deadline_s:
                raise
        await asyncio.sleep(_PAUSE_S)
