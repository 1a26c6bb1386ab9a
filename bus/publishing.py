"""Publishing that is done when the server says so, asked again until it does.

A lost answer cannot be told from a lost message, so what is published here may be stored twice:
commands are recognised by their id, schedules replace each other, dead letters have a window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from rookery.bus.connection import Connection, Outgoing
from rookery.schemas.errors import Failed, Refused

__all__ = ["patiently", "publish"]

T = TypeVar("T")

_PATIENCE_S = 10.0
_TRY_S = 2.0
_PAUSE_S = 0.1

_TOO_LARGE = 10054
_OUT_OF_SPACE = frozenset({10023, 10047, 10077})
"""Insufficient resources, storage exceeded for the account, limit of the stream reached."""


class _Refusal(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _Refusal | None = None


_decode_ack = msgspec.json.Decoder(_Ack).decode


async def publish(connection: Connection, message: Outgoing) -> int:
    """Store ``message`` in the stream of its subject; its sequence there.

    ``Failed`` SERVER_UNREACHABLE or JOURNAL_FULL, ``Refused`` PAYLOAD_TOO_LARGE.
    """
    answer = await patiently(lambda: connection.request(message, timeout_s=_TRY_S))
    ack = _decode_ack(answer.body)
    if ack.error is None:
        return ack.seq
    raise _explained(ack.error, message)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
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


def _explained(error: _Refusal, message: Outgoing) -> Failed | Refused:
    text = f"{error.description} (JetStream error {error.err_code}) for {message.subject[:200]}"
    if error.err_code == _TOO_LARGE:
        return Refused("PAYLOAD_TOO_LARGE", text)
    return Failed("JOURNAL_FULL" if error.err_code in _OUT_OF_SPACE else "STREAM_MISMATCH", text)
