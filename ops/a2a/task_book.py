"""The tasks of one session, read from the journal and followed while they go on.

Nothing here is a state of its own: another gateway, or this one after a restart, reads the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final

import msgspec

from rookery.bus.client import Client
from rookery.bus.event_loop import Backoff
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.a2a.task_facts import Cursor, TaskChange, TaskRecord, TasksOfSession
from rookery.ops.gateways import RealmLink
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.peers.items import Responder

__all__ = ["TaskBook"]

log = logging.getLogger(__name__)

FAMILY: Final = "peer"
WHOLE_MAX: Final = 1_000
"""Ended tasks whose changes stay in memory; those of others are read again."""
PATIENCE_S: Final = 30.0
"""How long a request waits until the journal is read."""


class TaskBook:
    """Follows one session. Used on one event loop."""

    def __init__(self, link: RealmLink, session: str) -> None:
        self._link, self.session = link, session
        self._tasks = TasksOfSession()
        self._whole: OrderedDict[str, TaskRecord] = OrderedDict()
        self._read_to = 0
        """Sequence of the last message that was read."""
        self._is_indexed = False
        self._news = asyncio.Event()

    # --- reads ------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Wait until all that the session has decided before this call is read."""
        client = await self._link.client()
        last = await client.journal.last(EntityId(FAMILY, self.session))
        needed = 0 if last is None else last.sequence
        await self.wait(lambda: self._is_indexed and self._read_to >= needed)

    async def wait(self, is_reached: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Wait for something that a fact brings; ``Failed`` NO_ANSWER if it takes too long."""
        try:
            async with asyncio.timeout(patience_s):
                while not is_reached():
                    await self._news.wait()
        except TimeoutError:
            raise Failed(
                "NO_ANSWER", f"the facts of {self.session} did not arrive in {patience_s:g} s"
            ) from None

    def find(self, client: str, task_id: str) -> TaskRecord | None:
        """A task of this client."""
        record = self._tasks.by_id.get(task_id)
        return record if record is not None and record.client == client else None

    def find_message(self, client: str, message_id: str) -> TaskRecord | None:
        """The task that a message of this client has begun."""
        return self._tasks.find_message(client, message_id)

    def tasks_of(self, client: str) -> Iterator[TaskRecord]:
        return (one for one in self._tasks.by_id.values() if one.client == client)

    @property
    def responder(self) -> Responder | None:
        """The program that executes the tasks, as far as it is known."""
        found = self._tasks.responder
        return None if found is None else msgspec.convert(found, Responder)

    def open_tasks(self) -> list[TaskRecord]:
        return list(self._tasks.open_tasks())

    async def changes(self, record: TaskRecord) -> Sequence[TaskChange]:
        """The changes of a task, so far; there may be more later."""
        if record.changes is not None:
            return record.changes
        client, tasks = await self._link.client(), TasksOfSession()
        found: list[TaskChange] = []
        pages = client.journal.scan(Filter(None, self.session), record.first - 1)
        async with aclosing(pages):
            async for page in pages:
                for fact in (fact for stored in page for fact in _facts(stored)):
                    change = tasks.fold(fact)
                    if change is not None and change[0].id == record.id:
                        found += change[1]
                        if found[-1].cursor >= record.last:
                            return found
        raise Failed("NO_ANSWER", f"the journal has not all of task {record.id} now")

    async def follow(
        self, record: TaskRecord, after: Cursor | None = None
    ) -> AsyncGenerator[TaskChange, None]:
        """The changes of a task behind a cursor, until its end."""
        last, seen = after or Cursor(0, 0), 0
        while True:
            news = self._news
            is_end = record.state.is_end
            for change in (await self.changes(record))[seen:]:
                seen += 1
                if change.cursor > last:
                    last = change.cursor
                    yield change
            if is_end:
                return
            await news.wait()

    def pending_targets(self) -> list[tuple[TaskRecord, str]]:
        """The targets of push notifications that lack an event."""
        return [
            (record, target_id)
            for record in self._tasks.notified.values()
            for target_id, target in record.targets.items()
            if not target.failed and target.delivered != str(record.last)
        ]

    async def wait_indexed(self) -> None:
        while not self._is_indexed:
            await self._news.wait()

    async def wait_news(self) -> None:
        await self._news.wait()

    # --- the follower -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled."""
        pause = Backoff(0.1, 5.0)
        while True:
            try:
                client = await self._link.client()
                if not self._is_indexed:
                    await self._index(client)
                pause = Backoff(0.1, 5.0)
                await self._follow(client)
            except CodedError as error:
                log.warning("tasks not followed", extra={"code": error.code, "to": self.session})
            await asyncio.sleep(pause.next_s())

    async def _index(self, client: Client) -> None:
        """Read the past: the session's own facts as a peer are all that ended tasks need."""
        self._tasks, read_to = TasksOfSession(), 0
        pages = client.journal.scan(Filter(FAMILY, self.session))
        async with aclosing(pages):
            async for page in pages:
                for stored in page:
                    read_to = stored.sequence
                    for fact in _facts(stored):
                        self._fold(fact)
        for record in self._tasks.by_id.values():
            record.changes = None  # Without what their runs waited for.
        self._whole.clear()
        for record in self.open_tasks():
            read_to = min(read_to, record.first - 1)
            self._tasks.drop(record)
        self._read_to = read_to

    async def _follow(self, client: Client) -> None:
        last = await client.journal.last(EntityId(FAMILY, self.session))
        indexed_to = 0 if last is None else last.sequence
        self._set_indexed(indexed_to)
        pages = client.feed.follow(Filter(None, self.session), self._read_to)
        async with aclosing(pages):
            async for page in pages:
                for stored in page:
                    for fact in _facts(stored):
                        self._fold(fact)
                    self._read_to = stored.sequence
                self._set_indexed(indexed_to)
                self._wake()

    def _set_indexed(self, indexed_to: int) -> None:
        if not self._is_indexed and self._read_to >= indexed_to:
            self._is_indexed = True
            self._wake()

    def _fold(self, fact: dict[str, Any]) -> None:
        found = self._tasks.fold(fact)
        if found is None:
            return
        record, _ = found
        if record.state.is_end:
            self._whole[record.id] = record
            if len(self._whole) > WHOLE_MAX:
                _, oldest = self._whole.popitem(last=False)
                oldest.changes = None

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _facts(stored: StoredMessage) -> list[dict[str, Any]]:
    """A message's facts as written; a sealed or damaged one has none that tell of tasks."""
    try:
        facts = msgspec.json.decode(stored.body, type=list[dict[str, Any]])
    except msgspec.MsgspecError:
        return []
    return [
        fact | {"position": f"{stored.sequence}.{number}"} for number, fact in enumerate(facts, 1)
    ]
