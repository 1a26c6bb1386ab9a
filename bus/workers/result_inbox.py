"""The subjects on which workers answer one connection of a node.

They are no inbox: a worker of a surface is allowed to publish to the results of this surface and to
nothing else. The secret in them keeps workers from answering calls that they were not given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from rookery.bus.clock import entropy
from rookery.bus.nats import Connection, Message, Subscription
from rookery.bus.subjects import Subjects

__all__ = ["ResultInbox"]

_SECRET_BYTES: Final = 16


class ResultInbox:
    """Routes the messages of workers to their listeners. A message without one is dropped."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._secret = entropy(_SECRET_BYTES).hex()
        self._numbers = count(1)
        self._listeners: dict[str, Callable[[Message], None]] = {}
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Subscribe, once; it survives reconnects."""
        async with self._opening:
            if self._subscription is None:
                subject = self._subjects.worker_results("*", self._secret)
                self._subscription = await self._connection.subscribe(subject, self._route)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.cancel()
            self._subscription = None

    @contextmanager
    def listen(self, surface: str, on_message: Callable[[Message], None]) -> Iterator[str]:
        """A new subject whose messages go to ``on_message`` until the context ends."""
        results = self._subjects.worker_results(surface, self._secret)
        subject = f"{results.removesuffix('*')}{next(self._numbers)}"
        self._listeners[subject] = on_message
        try:
            yield subject
        finally:
            del self._listeners[subject]

    def _route(self, messages: list[Message]) -> None:
        for message in messages:
            if (listener := self._listeners.get(message.subject)) is not None:
                listener(message)
