"""A request that is repeated under its id until its reply arrives.

Replies are not durable, so the client repeats the request after a reconnect and during long
silences. The id makes repetition harmless: a node that has executed the request only replies again.
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
    """Pauses between repetitions, doubling from the first to the last."""

    first_s: float
    last_s: float
    absence_s_max: float = inf
    """How long the request waits for any node to appear."""


class RetryingRequest:
    """One request and its reply."""

    def __init__(
        self,
        reply: PendingReply,
        send: Callable[[], Awaitable[object]],
        patience: RetrySchedule,
        connected: Callable[[], bool],
        settles: Callable[[dict[str, Any]], bool] = lambda _: True,
    ) -> None:
        """``settles``: whether a reply is final; after another one a further reply follows."""
        self._reply, self.send, self._schedule = reply, send, patience
        self._connected, self._is_final = connected, settles
        self.absence_s_max = patience.absence_s_max
        self.last_error: CodedError | None = None
        """Why there is no reply yet, if known."""

    async def result(self) -> dict[str, Any]:
        """The reply, after as many repetitions as needed; an error in it is raised."""
        patience_s, pause_s, absent_s = self._schedule.first_s, _PAUSE_S_MIN, 0.0
        while True:
            up = self._connected()
            message = await self._reply.next(patience_s if up else _PAUSE_S_MAX)
            if message is not None:
                try:
                    if self._is_final(reply := decode_reply(message)):
                        return reply
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
