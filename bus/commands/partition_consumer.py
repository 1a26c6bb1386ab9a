"""One open partition: a pull or a batch in work, never both.

A pull waits for a message, takes all that stand there and ends; the next one goes out with the
acknowledgement of the batch. So nothing lies here while a batch is slow to commit, and what arrives
meanwhile comes together. After a reconnect, or silence, the partition is taken over from
ourselves: what was on its way to us is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from rookery.bus.commands.consumer_ownership import Hold, Takeover
from rookery.bus.commands.headers import stored
from rookery.bus.commands.redelivery import ATTEMPTS_MAX, BATCH_MESSAGES_MAX, Cursor, Gate
from rookery.bus.journal.stored_message import Place, place_of, status_of
from rookery.bus.nats.connection import ApiError, Connection, Message, Outgoing, Subscription
from rookery.bus.ports import Delivery
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed, Refused

__all__ = ["Line"]

_log = logging.getLogger(__name__)

_EXPIRES_S = 10
_GRACE_S = 2
"""A pull that has not ended so long after it expired was lost."""
_BATCH_BYTES_MAX = 4 << 20
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0

_MANY = encode_json(
    {
        "batch": BATCH_MESSAGES_MAX,
        "max_bytes": _BATCH_BYTES_MAX,
        # Together: wait for the first message, then take what stands there and end.
        "expires": _EXPIRES_S * 1_000_000_000,
        "no_wait": True,
    }
)
_ONE = encode_json({"batch": 1, "no_wait": True})
"""What stands there already: a suspect, or what is larger than a batch may be."""

_NO_MORE = frozenset({404, 408})
"""All that stood there was sent, or nothing came in time."""
_TOO_LARGE = b"MaxBytes"


class Line:
    """Deliveries of one partition, batch after batch, to its owner."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        partition: int,
        *,
        deliver: Callable[[list[Delivery]], None],
        bury: Callable[[Delivery, str, str], Awaitable[int]],
        gate: Gate,
    ) -> None:
        self._connection, self._partition = connection, partition
        self._deliver, self._bury, self._gate = deliver, bury, gate
        self._takeover = Takeover(connection, subjects, partition)
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{subjects.inbox_stream}"
        self._inbox = connection.client.new_inbox()
        self._subscription: Subscription | None = None
        self._hold: Hold | None = None
        """``None`` before the partition is ours and after somebody has taken it over."""
        self.displaced = False
        """Whether another owner has taken the partition over."""
        self._cursor = Cursor()
        self._pulls = 0
        self._asked = 0
        """How many messages the open pull asks for; 0 if there is none."""
        self._watch: asyncio.TimerHandle | None = None
        self._arrived: list[tuple[Place, Message]] = []
        self._working: set[int] = set()
        self._last = 0
        self._ack = ""
        self._stale = False
        """Whether the partition must be renewed before the next pull."""
        self._renewing = False
        self._pause_s = _PAUSE_S_MIN
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Take the partition over, however long that takes, and pull."""
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._receive)
        self._connection.on_up.append(self._distrust)
        try:
            await self._insist(self._take)
        except BaseException:
            await self.close()
            raise
        self._ask()

    async def close(self) -> None:
        """Deliver no more; what is in work may be delivered again, here or elsewhere."""
        if self._subscription is None:
            return
        subscription, self._subscription = self._subscription, None
        self._connection.on_up.remove(self._distrust)
        self._end_pull()
        self._gate.leave(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await subscription.cancel()
        hold, self._hold = self._hold, None
        if hold is not None:
            try:
                await self._takeover.leave(hold, self._cursor)
            except (ApiError, Failed) as error:
                _log.info("partition %d was left without a word: %s", self._partition, error)

    def done(self, sequence: int) -> None:
        """The message is worked off; behind the last one of a batch comes the next batch."""
        if sequence not in self._working:
            return
        self._working.remove(sequence)
        if self._working:
            return
        self._cursor.done_to(self._last)
        self._gate.leave(self)
        if self._stale:
            self._renew()
        else:
            self._ask(Outgoing(self._ack, b"+ACK"))

    # Pulling.

    def _ask(self, *acknowledgement: Outgoing) -> None:
        """Open a pull, or get in line to pull a suspect."""
        if self._hold is None:
            return
        if self._cursor.alone:
            self._connection.send(acknowledgement)
            self._gate.enter(self, self._pull_one)
        else:
            self._pull(BATCH_MESSAGES_MAX, _MANY, acknowledgement)

    def _pull_one(self) -> None:
        self._pull(1, _ONE)

    def _pull(self, messages: int, query: bytes, before: Sequence[Outgoing] = ()) -> None:
        assert self._hold is not None
        self._pulls += 1
        self._asked = messages
        self._watch = asyncio.get_running_loop().call_later(_EXPIRES_S + _GRACE_S, self._distrust)
        subject, reply = f"{self._next}.{self._hold.consumer}", f"{self._inbox}.{self._pulls}"
        self._connection.send([*before, Outgoing(subject, query, reply)])

    def _end_pull(self) -> list[tuple[Place, Message]]:
        if self._watch is not None:
            self._watch.cancel()
        self._asked = 0
        arrived, self._arrived = self._arrived, []
        return arrived

    def _receive(self, messages: list[Message]) -> None:
        if not self._asked or self._hold is None:
            return
        end: Message | None = None
        for message in messages:
            if message.reply:
                if f".{self._hold.consumer}." in message.reply:
                    self._arrived.append((place_of(message.reply), message))
            elif message.subject == f"{self._inbox}.{self._pulls}":
                end = message
        if len(self._arrived) >= self._asked or (self._arrived and end is not None):
            self._hand_over(self._end_pull())
        elif end is not None:
            self._nothing_came(end)

    def _nothing_came(self, end: Message) -> None:
        alone = self._asked == 1
        self._end_pull()
        if status_of(end) in _NO_MORE:
            self._pause_s = _PAUSE_S_MIN
            if alone:  # What stood there has passed its age.
                self._cursor.clear()
                self._gate.leave(self)
            self._ask()
        elif _TOO_LARGE in end.header:
            self._pull_one()
        else:  # The consumer is gone, or its server is going.
            self._renew()

    # Working.

    def _hand_over(self, arrived: list[tuple[Place, Message]]) -> None:
        self._pause_s = _PAUSE_S_MIN
        partition, attempt = self._partition, self._cursor.attempt
        batch = [stored(m, partition, place, attempt(place.sequence)) for place, m in arrived]
        self._working = {place.sequence for place, _ in arrived}
        place, last = arrived[-1]
        self._last, self._ack = place.sequence, last.reply
        if batch[0].attempt > ATTEMPTS_MAX:
            self._spawn(self._set_aside(batch[0], self._last))
        else:
            self._deliver(batch)

    async def _set_aside(self, delivery: Delivery, sequence: int) -> None:
        """Bury what its owners died of, and go on."""
        reason = f"its node died {delivery.attempt - 1} times while working on it"

        async def bury() -> None:
            await self._bury(delivery, "COMMAND_QUARANTINED", reason)

        try:
            await self._insist(bury)
        except Refused as refusal:
            _log.error("command %r is skipped and not buried: %s", delivery.id, refusal)
        self.done(sequence)

    # Taking over.

    def _distrust(self) -> None:
        """What was on its way to us may be lost."""
        if self._working:
            self._stale = True
        elif self._hold is not None:
            self._renew()

    def _renew(self) -> None:
        self._end_pull()
        self._gate.leave(self)
        self._stale = False
        if not self._renewing:
            self._renewing = True
            self._spawn(self._take_again())

    async def _take_again(self) -> None:
        await self._pause()
        try:
            await self._insist(self._keep)
        finally:
            self._renewing = False
        self._ask()

    async def _take(self) -> None:
        self._hold, self._cursor = await self._takeover.take()

    async def _keep(self) -> None:
        assert self._hold is not None
        self._hold = await self._takeover.renew(self._hold, self._cursor)
        if self._hold is None:
            self.displaced = True
            _log.warning("partition %d was taken over by another node", self._partition)

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        """Outages are waited out."""
        while True:
            try:
                return await step()
            except (ApiError, Failed) as error:
                _log.info("partition %d waits: %s", self._partition, error)
            await self._pause()

    async def _pause(self) -> None:
        """Longer every time until something has come of it."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _PAUSE_S_MAX)
        await asyncio.sleep(pause_s)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
