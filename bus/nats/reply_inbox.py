"""Reply subjects of a connection: numbered, routed to their listeners, under one subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from weakref import WeakValueDictionary

from rookery.bus.nats.batch_client import Message

__all__ = ["PendingReply", "ReplyInbox"]


class PendingReply:
    """One reply subject; it may receive several messages, and it survives reconnects."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self._arrived: deque[Message] = deque()
        self._changed = asyncio.Event()

    async def next(self, timeout_s: float) -> Message | None:
        """Wait for a message. ``None`` means that the request should be sent again: the time is
        over, or the connection was lost or came back."""
        try:
            async with asyncio.timeout(timeout_s):
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
        """Let the current or the next ``next`` return ``None``."""
        self._changed.set()


class ReplyInbox:
    """All reply subjects of one connection. A message without a listener is dropped."""

    def __init__(self, prefix: str) -> None:
        self.wildcard = f"{prefix}.*"
        """The subject that ``route`` is subscribed to."""
        self._prefix = prefix
        self._numbers = count(1)
        self._listeners: dict[str, Callable[[Message], None]] = {}
        self._expected: WeakValueDictionary[str, PendingReply] = WeakValueDictionary()

    @contextmanager
    def listen(self, on_message: Callable[[Message], None]) -> Iterator[str]:
        """A new subject whose messages go to ``on_message`` until the context ends."""
        subject = self._new_subject()
        self._listeners[subject] = on_message
        try:
            yield subject
        finally:
            del self._listeners[subject]

    def expect(self) -> PendingReply:
        """A new subject; its messages are collected as long as the caller holds the reply."""
        reply = PendingReply(self._new_subject())
        self._expected[reply.subject] = reply
        return reply

    def route(self, messages: list[Message]) -> None:
        for message in messages:
            if listener := self._listeners.get(message.subject):
                listener(message)
            elif reply := self._expected.get(message.subject):
                reply.put(message)

    def wake_all(self) -> None:
        """Wake every pending reply: what was sent while the connection was lost is lost, too."""
        for reply in list(self._expected.values()):
            reply.wake()

    def _new_subject(self) -> str:
        return f"{self._prefix}.{next(self._numbers)}"
