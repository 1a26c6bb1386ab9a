"""The journal as it grows, on JetStream: a pass over it that does not end
(``rookery.bus.journal.ordered_consumer``).

It keeps no cursor for anybody: whoever follows remembers the last sequence it has seen.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from rookery.bus.journal.ordered_consumer import OrderedConsumer
from rookery.bus.journal.stored_message import matcher
from rookery.bus.nats.connection import Connection
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.subjects import Subjects

__all__ = ["JetStreamFeed"]


class JetStreamFeed:
    """Port ``Feed``. Each follower has a consumer of its own, gone when it stops."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects

    async def follow(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        pull = OrderedConsumer(self._connection, self._subjects, where, after)
        try:
            while True:
                if selected := [one for one in await pull.page() if matches(one)]:
                    yield selected
        finally:
            await pull.close()
