"""The output of runs as a client gets it while they go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.nats import Connection, Message, Subscription
from rookery.bus.subjects import Subjects
from rookery.schemas.run import OutputMessage, OutputStream

__all__ = ["OutputFeed", "PrintedText"]

log = logging.getLogger(__name__)

WAITING_MESSAGES_MAX: Final = 1_024
"""Of a feed that is not read; further ones are dropped, which the numbers show."""

_decode = msgspec.json.Decoder(OutputMessage).decode


class PrintedText(NamedTuple):
    """A piece of a run's output."""

    number: int
    """From 1 in each run; a number that is missing was lost, and is in the result."""
    stream: OutputStream
    text: str


class OutputFeed:
    """The output of one session's runs, from the subscription on."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[OutputMessage] = asyncio.Queue(WAITING_MESSAGES_MAX)
        self._subscription: Subscription | None = None

    @classmethod
    async def open(cls, connection: Connection, subjects: Subjects, session: str) -> OutputFeed:
        feed = cls()
        subject = subjects.output(session)
        feed._subscription = await connection.subscribe(subject, feed._on_messages)
        return feed

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.cancel()
            self._subscription = None

    async def pieces(
        self, run_id: str, ended: asyncio.Future[Any]
    ) -> AsyncGenerator[PrintedText, None]:
        """The pieces of one run, each once, until ``ended`` is done and all are read."""
        last = 0
        while (message := await self._next(ended)) is not None:
            if message.run_id != run_id:
                continue
            for number, piece in enumerate(message.pieces, message.number):
                if number > last:
                    last = number
                    yield PrintedText(number, piece.stream, piece.text)

    async def _next(self, ended: asyncio.Future[Any]) -> OutputMessage | None:
        """The next message; ``None`` at the end."""
        if not self._messages.empty():
            return self._messages.get_nowait()
        if ended.done():
            return None
        getting: asyncio.Future[Any] = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait({getting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                message: OutputMessage = getting.result()
                return message
        finally:
            getting.cancel()
        return None if self._messages.empty() else self._messages.get_nowait()

    def _on_messages(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                self._messages.put_nowait(_decode(message.body))
            except msgspec.MsgspecError as error:
                log.warning("output that is not readable dropped: %s", error)
            except asyncio.QueueFull:
                return
