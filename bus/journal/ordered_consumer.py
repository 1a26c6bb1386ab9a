"""The ordered consumer: one pass over the journal by ephemeral pull consumers without acks.

It holds the position itself: after a reconnect, missed heartbeats or a lost delivery it replaces
the server's consumer right behind the last returned message, so no message is lost or repeated. A
pull request is always open, so a live message arrives without a further round trip. Messages
removed from the stream raise ``FEED_GAP``.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rookery.bus.event_loop import Backoff
from rookery.bus.jetstream_api import ApiError, delivery_info, status_of
from rookery.bus.journal.reader import LeaderLag, from_delivery
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription, header_value
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed

__all__ = ["OrderedConsumer"]

_SECOND_NS = 1_000_000_000
_PREFETCH_MESSAGES = 2048
"""The open requests are for one to two times this many messages; with a fraction of it a scan is
three times slower (measured)."""
_PREFETCH_BYTES_MAX = 8 << 20
_EXPIRES_S = 30
_HEARTBEAT_S = 1
"""The consumer is replaced after two missed heartbeats."""
_INACTIVE_S = 30
_CREATE_S = 2.0
"""The server removes a consumer without pull requests after this time."""
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 0.5
_REQUEST_ENDED = (b"Batch Completed", b"MaxBytes")
"""The regular end of a request with a limit in bytes. Treated as an error, it would replace the
consumer every 4,096 messages and waste as many deliveries (measured)."""


class OrderedConsumer:
    """Returns the messages above ``position``, page by page."""

    def __init__(
        self, connection: Connection, subjects: Subjects, where: Filter, after: int
    ) -> None:
        self.position = after
        """Sequence of the last returned message."""
        self.pending = 0
        """How many messages are behind ``position``, by the last delivery."""
        self._connection, self._subjects, self._where = connection, subjects, where
        self._consumer: _ServerConsumer | None = None
        self._lag = LeaderLag()
        self._changed = asyncio.Event()
        connection.on_reconnect.append(self._mark_broken)
        connection.on_disconnect.append(self._mark_broken)

    async def start(self) -> None:
        """Create the server's consumer, retrying until it works; ``Failed`` FEED_GAP."""
        pause = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
        while self._consumer is None or self._consumer.broken:
            self._changed.clear()
            try:
                await self._replace()
            except (ApiError, Failed) as error:
                if isinstance(error, Failed) and error.code == "FEED_GAP":
                    raise
                if self._consumer:
                    self._consumer.broken = True
                await self._wait(pause.next_s())

    async def page(self) -> list[StoredMessage]:
        """Wait for the next messages, at least one."""
        while True:
            await self.start()
            consumer = self._consumer
            assert consumer is not None
            consumer.request()
            if page := self._validated_page(consumer):
                return page
            if not consumer.broken and not await self._wait(2 * _HEARTBEAT_S):
                consumer.broken = True

    async def close(self) -> None:
        """Remove the server's consumer."""
        self._connection.on_reconnect.remove(self._mark_broken)
        self._connection.on_disconnect.remove(self._mark_broken)
        if self._consumer:
            await self._consumer.close()

    def _validated_page(self, consumer: _ServerConsumer) -> list[StoredMessage]:
        page: list[StoredMessage] = []
        self._changed.clear()
        for message in consumer.pop_arrived():
            info = delivery_info(message.reply)
            lost = info.delivered != consumer.delivered + 1
            gone = self._is_unfiltered and info.sequence != self.position + 1
            if gone and not lost and not page:
                raise _gap(self.position + 1, info.sequence - 1)
            if gone or lost:  # The next consumer delivers it, or shows the gap.
                consumer.broken = True
                break
            page.append(from_delivery(message, info, self._subjects))
            consumer.delivered = info.delivered
            self.position, self.pending = info.sequence, info.pending
        return page

    @property
    def _is_unfiltered(self) -> bool:
        """Whether the pass selects every message, so that a skipped sequence is a loss."""
        return self._where.family is None and self._where.key is None

    async def _replace(self) -> None:
        if self._consumer:
            await self._consumer.close()
            self._consumer = None
        stream = self._subjects.journal_stream
        filters = [] if self._is_unfiltered else self._subjects.fact_filters(self._where)
        # Set before it is created, so that a disconnect meanwhile marks it broken.
        self._consumer = _ServerConsumer(self._connection, stream, self._changed)
        self.pending = await self._consumer.open(self.position + 1, filters)
        # A stream replaced after this check removes the consumer, which heartbeats show.
        info = await self._connection.api(f"STREAM.INFO.{stream}", {"deleted_details": True})
        self._check(info["state"], info["config"].get("num_replicas") or 1)

    def _check(self, state: dict[str, Any], copies: int) -> None:
        """Raise ``FEED_GAP`` if messages above the position were removed."""
        first, position = state["first_seq"], self.position
        self._lag.check(state["last_seq"], position, copies)
        if first > position + 1:
            raise _gap(position + 1, first - 1)
        # A filtered pass cannot tell which subject a removed message had: any may match.
        removed = [n for n in state.get("deleted", ()) if n > position]
        if removed and not self._is_unfiltered:
            raise _gap(removed[0], removed[-1])

    def _mark_broken(self) -> None:
        if self._consumer:
            self._consumer.broken = True
        self._changed.set()

    async def _wait(self, timeout_s: float) -> bool:
        """Wait for a change; ``False`` if the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class _ServerConsumer:
    """One consumer at the server; it is replaced as soon as it is broken."""

    def __init__(self, connection: Connection, stream: str, changed: asyncio.Event) -> None:
        self.broken = False
        self.delivered = 0
        """The consumer's own count at the last returned message."""
        self._connection, self._stream, self._changed = connection, stream, changed
        self._inbox = connection.client.new_inbox()
        self._name = "pass-" + self._inbox.rpartition(".")[2]
        self._subscription: Subscription | None = None
        self._arrived: list[Message] = []
        self._count = 0
        self._credit = 0

    async def open(self, start: int, filters: list[str]) -> int:
        """Create it; returns the number of messages it will deliver."""
        self._subscription = await self._connection.subscribe(self._inbox, self._on_batch)
        config: dict[str, Any] = {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": start,
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_S * _SECOND_NS,
        }
        if len(filters) == 1:
            config["filter_subject"] = filters[0]
        elif filters:
            config["filter_subjects"] = filters
        query = {"stream_name": self._stream, "config": config}
        subject = f"CONSUMER.CREATE.{self._stream}.{self._name}"
        # A cluster may have chosen a server that has just stopped: the next one is on another.
        made = await self._connection.api(subject, query, timeout_s=_CREATE_S, may_repeat=True)
        return int(made["num_pending"])

    async def close(self) -> None:
        self.broken = True
        subject = f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}"
        self._connection.send([Outgoing(subject, b"")])
        if self._subscription:
            await self._subscription.cancel()

    def request(self) -> None:
        """Request more messages if the open requests are for less than one page."""
        if self._credit >= _PREFETCH_MESSAGES:
            return
        query = {
            "batch": _PREFETCH_MESSAGES,
            "max_bytes": _PREFETCH_BYTES_MAX,
            "expires": _EXPIRES_S * _SECOND_NS,
            "idle_heartbeat": _HEARTBEAT_S * _SECOND_NS,
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        request = Outgoing(subject, encode_json(query), self._inbox)
        pages = -(-(2 * _PREFETCH_MESSAGES - self._credit) // _PREFETCH_MESSAGES)
        self._credit += pages * _PREFETCH_MESSAGES
        self.broken |= not self._connection.send([request] * pages)

    def pop_arrived(self) -> list[Message]:
        arrived, self._arrived = self._arrived, []
        return arrived

    def _on_batch(self, messages: list[Message]) -> None:
        for message in messages:
            if status := status_of(message):
                self._on_status(status, message.header)
            else:
                self._arrived.append(message)
                self._count += 1
                self._credit -= 1
        self._changed.set()

    def _on_status(self, status: int, header: bytes) -> None:
        if status == 100:
            sent = int(header_value(header, b"Nats-Last-Consumer") or 0)
            self.broken |= sent > self._count
        elif status == 408 or any(text in header for text in _REQUEST_ENDED):
            self._credit -= int(header_value(header, b"Nats-Pending-Messages") or 0)
        else:
            self.broken = True


def _gap(first: int, last: int) -> Failed:
    return Failed(
        "FEED_GAP",
        f"messages {first} to {last} are missing from the journal",
        hint="rookery journal verify",
    )
