"""The consumer of one partition of the inbox, and its ownership.

A partition consumer has either an open pull or a batch in work. A pull waits for a message, takes
all that are stored and ends; the next pull goes out with the acknowledgement of the batch. So no
message waits in this process while a batch commits, and messages that arrive meanwhile form the
next batch. After a reconnect or a silence the owner renews its ownership, and the server sends the
messages that were on their way again.

JetStream redelivers by time, newer messages before older ones, which would break the order of a
key. So no message is ever redelivered: a new owner creates the durable consumer
``p<partition>-<number>`` behind the last done message and removes the one before, which shuts out
an owner that has not noticed its loss.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from rookery.bus.commands.command_messages import CommandDecoder
from rookery.bus.commands.redelivery import (
    ATTEMPTS_MAX,
    BATCH_MESSAGES_MAX,
    PartitionCursor,
    PreviousOwnerState,
    SuspectGate,
)
from rookery.bus.event_loop import Backoff, TaskSet
from rookery.bus.jetstream_api import (
    CONSUMER_NOT_FOUND,
    ApiError,
    DeliveryInfo,
    delivery_info,
    status_of,
)
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.ports import Delivery
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed, Refused

__all__ = ["ConsumerOwnership", "OwnedConsumer", "PartitionConsumer"]

_NEVER_NS = 30 * 86_400 * 1_000_000_000
_RELEASE_S = 1.0
_TIMEOUT_S = 6.0
"""Above the server's own of 5 s."""


class OwnedConsumer(NamedTuple):
    """The durable consumer of an owned partition."""

    number: int
    consumer: str
    after_sequence: int
    """The last sequence that was done when the consumer was created."""


class ConsumerOwnership:
    """The durable consumers of one partition; its methods raise ``Failed`` and ``ApiError``."""

    def __init__(self, connection: Connection, subjects: Subjects, partition: int) -> None:
        self._connection = connection
        self._stream = subjects.inbox_stream
        self._prefix = f"p{partition}-"
        self._filter = subjects.stored_commands(partition)
        self._owner = connection.client.new_inbox()
        """Marks our consumers, so that one whose creation got no reply is recognised."""

    async def acquire(self) -> tuple[OwnedConsumer, PartitionCursor]:
        """Take the partition over and continue where the previous owner ended."""
        numbers = await self._numbers()
        previous = await self._newest(numbers)
        cursor = PartitionCursor.after(_previous_state(previous)) if previous else PartitionCursor()
        return await self._create(max(numbers, default=0) + 1, cursor, numbers), cursor

    async def renew(self, owned: OwnedConsumer, cursor: PartitionCursor) -> OwnedConsumer | None:
        """Continue at this owner's cursor; ``None`` if another owner has the partition."""
        numbers = await self._numbers()
        last = max(numbers, default=0)
        if last > owned.number:
            newest = await self._newest(numbers)
            if newest and newest["config"]["metadata"].get("owner") != self._owner:
                return None
        return await self._create(max(last, owned.number) + 1, cursor, numbers)

    async def release(self, owned: OwnedConsumer, cursor: PartitionCursor) -> None:
        """Mark the release, so that the next owner suspects no message."""
        await self._put("update", owned, cursor, {"orderly": "yes"}, timeout_s=_RELEASE_S)

    async def _numbers(self) -> list[int]:
        """Numbers of the partition's consumers; several if a takeover was interrupted. Names come
        from the leader of the cluster alone; their state would be gathered from all servers."""
        found: list[str] = []
        while True:
            page = await self._consumer_api(f"NAMES.{self._stream}", {"offset": len(found)})
            found += page["consumers"] or []
            if len(found) >= page["total"] or not page["consumers"]:
                break
        numbers = (name.removeprefix(self._prefix) for name in found)
        return [int(number) for number in numbers if number.isdecimal()]

    async def _newest(self, numbers: Sequence[int]) -> dict[str, Any] | None:
        """The newest of these consumers that exists."""
        for number in sorted(numbers, reverse=True):
            try:
                return await self._consumer_api(f"INFO.{self._stream}.{self._prefix}{number}")
            except ApiError as error:
                if error.err_code != CONSUMER_NOT_FOUND:
                    raise
        return None

    async def _create(
        self, number: int, cursor: PartitionCursor, existing: Sequence[int]
    ) -> OwnedConsumer:
        owned = OwnedConsumer(number, f"{self._prefix}{number}", cursor.floor)
        await self._put("create", owned, cursor, {})
        for older in existing:
            try:
                await self._consumer_api(f"DELETE.{self._stream}.{self._prefix}{older}")
            except ApiError as error:
                if error.err_code != CONSUMER_NOT_FOUND:
                    raise
        return owned

    async def _put(
        self,
        action: str,
        owned: OwnedConsumer,
        cursor: PartitionCursor,
        more: dict[str, str],
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        metadata = {
            "owner": self._owner,
            "deaths": str(cursor.deaths),
            "suspects_to": str(cursor.suspects_to),
        }
        config = {
            "name": owned.consumer,
            "durable_name": owned.consumer,
            "description": "commands and fired timers of a partition, pulled by its owner",
            "filter_subject": self._filter,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": owned.after_sequence + 1,
            "ack_policy": "all",
            "ack_wait": _NEVER_NS,
            "max_ack_pending": BATCH_MESSAGES_MAX,
            "metadata": metadata | more,
        }
        query = {"stream_name": self._stream, "action": action, "config": config}
        await self._consumer_api(
            f"CREATE.{self._stream}.{owned.consumer}", query, timeout_s=timeout_s
        )

    async def _consumer_api(
        self, verb: str, query: object = None, *, timeout_s: float = _TIMEOUT_S
    ) -> dict[str, Any]:
        return await self._connection.api(
            f"CONSUMER.{verb}", query, timeout_s=timeout_s, may_repeat=True
        )


def _previous_state(info: dict[str, Any]) -> PreviousOwnerState:
    config = info["config"]
    metadata = config["metadata"]
    began = config["opt_start_seq"] - 1
    return PreviousOwnerState(
        began=began,
        floor=max(began, info["ack_floor"]["stream_seq"]),
        delivered=info["delivered"]["stream_seq"],
        suspects_to=int(metadata["suspects_to"]),
        deaths=int(metadata["deaths"]),
        orderly="orderly" in metadata,
    )


_log = logging.getLogger(__name__)

_EXPIRES_S = 10
_GRACE_S = 2
"""A pull that has not ended this long after its expiry was lost."""
_BATCH_BYTES_MAX = 4 << 20
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0

_BATCH_QUERY = encode_json(
    {
        "batch": BATCH_MESSAGES_MAX,
        "max_bytes": _BATCH_BYTES_MAX,
        # Together: wait for the first message, then take all stored ones and end.
        "expires": _EXPIRES_S * 1_000_000_000,
        "no_wait": True,
    }
)
_SINGLE_QUERY = encode_json({"batch": 1, "no_wait": True})
"""For one stored message: a suspect, or one larger than a batch may be."""

_EMPTY_STATUSES = frozenset({404, 408})
"""All stored messages were sent, or no message arrived in time."""
_TOO_LARGE = b"MaxBytes"


class PartitionConsumer:
    """Delivers the messages of one partition, batch by batch, to its owner."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        partition: int,
        *,
        deliver: Callable[[list[Delivery]], None],
        dead_letter: Callable[[Delivery, str, str], Awaitable[int]],
        gate: SuspectGate,
        decoder: CommandDecoder,
    ) -> None:
        self._connection, self._partition = connection, partition
        self._decoder = decoder
        self._deliver, self._dead_letter, self._suspect_gate = deliver, dead_letter, gate
        self._ownership = ConsumerOwnership(connection, subjects, partition)
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.inbox_stream}"
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._owned: OwnedConsumer | None = None
        """``None`` before the partition is owned and after another owner has taken it over."""
        self.is_taken_over = False
        """Whether another owner has taken the partition over."""
        self._cursor = PartitionCursor()
        self._pulls = 0
        self._requested = 0
        """How many messages the open pull requests; 0 if no pull is open."""
        self._pull_timer: asyncio.TimerHandle | None = None
        self._arrived: list[tuple[DeliveryInfo, Message]] = []
        self._working: set[int] = set()
        self._last = 0
        self._ack = ""
        self._stale = False
        """Whether the partition must be renewed before the next pull."""
        self._renewing = False
        self._pause = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
        self._tasks = TaskSet()

    async def open(self) -> None:
        """Take the partition over, retrying until it works, and pull."""
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._receive)
        self._connection.on_reconnect.append(self._mark_stale)
        try:
            await self._retry_until_done(self._acquire)
        except BaseException:
            await self.close()
            raise
        self._request_next()

    async def close(self) -> None:
        """Stop; messages in work may be delivered again, to this or another owner."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        self._connection.on_reconnect.remove(self._mark_stale)
        self._end_pull()
        self._suspect_gate.exit(self)
        await self._tasks.cancel()
        await subscription.cancel()
        owned, self._owned = self._owned, None
        if owned is not None:
            try:
                await self._ownership.release(owned, self._cursor)
            except (ApiError, Failed) as error:
                _log.info("release not recorded: partition=%d error=%s", self._partition, error)

    def done(self, sequence: int) -> None:
        """Mark a message as done; after the last one of a batch, pull the next batch."""
        if sequence not in self._working:
            return
        self._working.remove(sequence)
        if self._working:
            return
        self._cursor.mark_done(self._last)
        self._suspect_gate.exit(self)
        if self._stale:
            self._renew()
        else:
            self._request_next(Outgoing(self._ack, b"+ACK"))

    # Pulling.

    def _request_next(self, *acknowledgement: Outgoing) -> None:
        """Open a pull, or wait at the gate to pull a suspect."""
        if self._owned is None:
            return
        if self._cursor.must_deliver_alone:
            self._connection.send(acknowledgement)
            self._suspect_gate.enter(self, self._pull_one)
        else:
            self._pull(BATCH_MESSAGES_MAX, _BATCH_QUERY, acknowledgement)

    def _pull_one(self) -> None:
        self._pull(1, _SINGLE_QUERY)

    def _pull(self, messages: int, query: bytes, before: Sequence[Outgoing] = ()) -> None:
        assert self._owned is not None
        self._pulls += 1
        self._requested = messages
        self._pull_timer = asyncio.get_running_loop().call_later(
            _EXPIRES_S + _GRACE_S, self._mark_stale
        )
        subject, reply = f"{self._next}.{self._owned.consumer}", f"{self._inbox}.{self._pulls}"
        self._connection.send([*before, Outgoing(subject, query, reply)])

    def _end_pull(self) -> list[tuple[DeliveryInfo, Message]]:
        if self._pull_timer is not None:
            self._pull_timer.cancel()
        self._requested = 0
        arrived, self._arrived = self._arrived, []
        return arrived

    def _receive(self, messages: list[Message]) -> None:
        if not self._requested or self._owned is None:
            return
        end: Message | None = None
        for message in messages:
            if message.reply:
                if f".{self._owned.consumer}." in message.reply:
                    self._arrived.append((delivery_info(message.reply), message))
            elif message.subject == f"{self._inbox}.{self._pulls}":
                end = message
        if len(self._arrived) >= self._requested or (self._arrived and end is not None):
            self._deliver_batch(self._end_pull())
        elif end is not None:
            self._on_empty_pull(end)

    def _on_empty_pull(self, end: Message) -> None:
        alone = self._requested == 1
        self._end_pull()
        if status_of(end) in _EMPTY_STATUSES:
            self._pause.reset()
            if alone:  # The suspect has expired.
                self._cursor.clear_suspects()
                self._suspect_gate.exit(self)
            self._request_next()
        elif _TOO_LARGE in end.header:
            self._pull_one()
        else:  # The consumer is removed, or its server stops.
            self._renew()

    # Working.

    def _deliver_batch(self, arrived: list[tuple[DeliveryInfo, Message]]) -> None:
        self._pause.reset()
        partition, attempt = self._partition, self._cursor.attempt
        decode = self._decoder.from_inbox
        batch = [decode(m, partition, info, attempt(info.sequence)) for info, m in arrived]
        self._working = {info.sequence for info, _ in arrived}
        info, last = arrived[-1]
        self._last, self._ack = info.sequence, last.reply
        if batch[0].attempt > ATTEMPTS_MAX:
            self._tasks.start(self._quarantine(batch[0], self._last))
        else:
            self._deliver(batch)

    async def _quarantine(self, delivery: Delivery, sequence: int) -> None:
        """Move a message whose owners died to the dead letters, and continue."""
        reason = f"its node died {delivery.attempt - 1} times while working on it"

        async def add_dead_letter() -> None:
            await self._dead_letter(delivery, "COMMAND_QUARANTINED", reason)

        try:
            await self._retry_until_done(add_dead_letter)
        except Refused as refusal:
            _log.error(
                "command skipped without a dead letter: id=%r error=%s", delivery.id, refusal
            )
        self.done(sequence)

    # Taking over.

    def _mark_stale(self) -> None:
        """Renew the ownership before the next pull: messages on their way may be lost."""
        if self._working:
            self._stale = True
        elif self._owned is not None:
            self._renew()

    def _renew(self) -> None:
        self._end_pull()
        self._suspect_gate.exit(self)
        self._stale = False
        if not self._renewing:
            self._renewing = True
            self._tasks.start(self._renew_ownership())

    async def _renew_ownership(self) -> None:
        await asyncio.sleep(self._pause.next_s())
        try:
            await self._retry_until_done(self._renew_once)
        finally:
            self._renewing = False
        self._request_next()

    async def _acquire(self) -> None:
        self._owned, self._cursor = await self._ownership.acquire()

    async def _renew_once(self) -> None:
        assert self._owned is not None
        self._owned = await self._ownership.renew(self._owned, self._cursor)
        if self._owned is None:
            self.is_taken_over = True
            _log.warning("partition taken over by another node: partition=%d", self._partition)

    async def _retry_until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat ``step`` until it succeeds; outages only delay it."""
        while True:
            try:
                return await step()
            except (ApiError, Failed) as error:
                _log.info("partition waits: partition=%d error=%s", self._partition, error)
            await asyncio.sleep(self._pause.next_s())
