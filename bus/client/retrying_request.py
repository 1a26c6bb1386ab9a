"""A request that is repeated under its id until its reply arrives.

Replies are not durable, so the client repeats the request after a reconnect and during long
silences. The id makes repetition harmless: a node that has executed the request only replies again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.commands.command_messages import CODE, FACT_COUNT
from rookery.bus.event_loop import Backoff
from rookery.bus.jetstream_api import NO_RESPONDERS, status_of
from rookery.bus.nats import Message
from rookery.bus.nats.batch_client import header_value
from rookery.bus.nats.reply_inbox import PendingReply
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.machines.transition import RejectionKind, TransitionRejected

__all__ = ["RetrySchedule", "RetryingRequest"]

_LISTS_BEHIND: Final = "LISTS_BEHIND"
_RETRYABLE_CODES: Final = frozenset(
    {_LISTS_BEHIND, "NODE_DRAINING", "NODE_FAILED", "NODE_OVERLOADED", "PARTITION_UNOWNED"}
)
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.05, 1.0
_SILENCE_GROWTH = 1.3
"""What is lost while a cluster elects is sent again at most a third of that time later."""
_CODE = CODE.encode()
_FACT_COUNT = FACT_COUNT.encode()

_SERVER_SIDE_CODES = frozenset(
    {
        "CHAIN_BROKEN",
        "COMMAND_QUARANTINED",
        "CONFLICT",
        "FACT_INVALID",
        "FACT_UNKNOWN",
        "FACT_VERSION_UNSUPPORTED",
        "JOURNAL_FULL",
        "LISTS_BEHIND",
        "NODE_DRAINING",
        "NODE_FAILED",
        "NODE_OVERLOADED",
        "PARTITION_UNOWNED",
        "SEALED_UNSUPPORTED",
        "SERVER_UNREACHABLE",
    }
)
"""Codes of answers that say nothing against the request."""


class RetrySchedule(NamedTuple):
    """Pauses between repetitions, growing from the first to the last."""

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
        self._on_progress: Callable[[str], None] = lambda _: None
        """Gets what a node says that is still under way, each time it says something else."""
        self.fact_count: int | None = None
        """How many facts the view in the reply contains, if the reply says so."""

    async def exchange(
        self, timeout_s: float | None, on_progress: Callable[[str], None]
    ) -> dict[str, Any]:
        """Send, and wait for the reply; ``TimeoutError`` counts from the last progress of a node
        that says that it works on it."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout_s) as deadline:

            def wait_longer(progress: str) -> None:
                on_progress(progress)
                if timeout_s is not None:
                    deadline.reschedule(loop.time() + timeout_s)

            self._on_progress = wait_longer
            await self.send()
            return await self.result()

    async def result(self) -> dict[str, Any]:
        """The answer to what was sent, however often it takes to ask; raises what was answered if
        that is an error."""
        silence = Backoff(self._schedule.first_s, self._schedule.last_s, growth=_SILENCE_GROWTH)
        pause, absent_s = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX), 0.0
        while True:
            up = self._connected()
            message = await self._reply.next(silence.pause_s if up else _PAUSE_S_MAX)
            if message is not None:
                try:
                    if self._is_final(reply := _decode_reply(message)):
                        self.fact_count = _decode_fact_count(message)
                        return reply
                    continue
                except Failed as error:
                    if error.code not in _RETRYABLE_CODES:
                        raise
                    if error.code == _LISTS_BEHIND and str(error) != str(self.last_error):
                        self._on_progress(error.message)
                        absent_s = 0.0
                    self.last_error = error
                silence.reset()
                pause_s = pause.next_s()
                await asyncio.sleep(pause_s)
                absent_s += pause_s
            elif self._connected():
                self.last_error, absent_s = None, 0.0
                pause.reset()
                silence.next_s()
            else:
                self.last_error = Failed(
                    "SERVER_UNREACHABLE", "the connection to the server is lost"
                )
                absent_s += 0.0 if up else _PAUSE_S_MAX
                silence.reset()
            if self.last_error is not None and absent_s > self.absence_s_max:
                raise self.last_error
            if self._connected():
                await self.send()


def _decode_reply(message: Message) -> dict[str, Any]:
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


def _decode_fact_count(message: Message) -> int | None:
    count = header_value(message.header, _FACT_COUNT)
    return int(count) if count.isdecimal() else None


def _coded_error(
    *, code: str, message: str, hint: str | None = None, **details: object
) -> CodedError:
    if (rejection := _rejection(hint or "", details)) is not None:
        return rejection
    if code not in CODES:
        return Failed("UNKNOWN_CODE", f"{code}: {message}", hint=hint or "")
    kind = Failed if code in _SERVER_SIDE_CODES else Refused
    return kind(code, message, hint=hint or "")


def _rejection(hint: str, details: Mapping[str, object]) -> TransitionRejected | None:
    """A machine's rejection, from what its error says beside code and message."""
    match details:
        case {"kind": str(kind), "context": str(context), "reason": str(reason)}:
            if kind in tuple(RejectionKind):
                return TransitionRejected(context, reason, RejectionKind(kind), hint)
    return None
