"""A request under way: sent, and sent again under its id, until it is answered.

Answers are not durable: after a reconnect, and now and then in a long silence, the same request is
sent once more. Its id makes that harmless: a node that knows it only answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, NamedTuple

from rookery.bus.nats.reply_inbox import PendingReply, decode_reply
from rookery.schemas.errors import CodedError, Failed

__all__ = ["RetrySchedule", "RetryingRequest"]

_RETRYABLE_CODES: Final = frozenset(
    {"NODE_DRAINING", "NODE_FAILED", "NODE_OVERLOADED", "PARTITION_UNOWNED"}
)
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0


class RetrySchedule(NamedTuple):
    """How long an answer may be silent before the request is repeated: it doubles."""

    first_s: float
    last_s: float
    absence_s_max: float = inf
    """How long there may be nobody to answer at all."""


class RetryingRequest:
    """One request."""

    def __init__(
        self,
        reply: PendingReply,
        send: Callable[[], Awaitable[object]],
        patience: RetrySchedule,
        connected: Callable[[], bool],
        settles: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> None:
        """``settles``: whether an answer is the last; else the same request is answered again."""
        self._reply, self.send, self._schedule = reply, send, patience
        self._connected, self._is_final = connected, settles
        self.absence_s_max = patience.absence_s_max
        self.last_error: CodedError | None = None
        """Why there is no answer yet, if anybody said so."""

    async def result(self) -> dict[str, Any]:
        """The answer to what was sent, however often it takes to ask; raises what was answered if
        that is an error."""
        patience_s, pause_s, absent_s = self._schedule.first_s, _PAUSE_S_MIN, 0.0
        while True:
            up = self._connected()
            message = await self._reply.next(patience_s if up else _PAUSE_S_MAX)
            if message is not None:
                try:
                    if self._is_final(told := decode_reply(message)):
                        return told
                    continue
                except Failed as setback:
                    if setback.code not in _RETRYABLE_CODES:
                        raise
                    self.last_error, patience_s = setback, self._schedule.first_s
                await asyncio.sleep(pause_s)
                absent_s += pause_s
                pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            elif self._connected():
                self.last_error, pause_s, absent_s = None, _PAUSE_S_MIN, 0.0
                patience_s = min(2 * patience_s, self._schedule.last_s)
            else:
                self.last_error = Failed(
                    "SERVER_UNREACHABLE", "the connection to the server is lost"
                )
                absent_s += 0.0 if up else _PAUSE_S_MAX
                patience_s = self._schedule.first_s
            if self.last_error is not None and absent_s > self.absence_s_max:
                raise self.last_error
            if self._connected():
                await self.send()
