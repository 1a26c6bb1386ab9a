"""``EntityLoader``: the actors' asynchronous reads: histories, missed facts, large bodies.

Each read is a task on the bus's loop that ends as a message in the actor's mailbox. During an
outage the task retries, since an entity can decide nothing without its history. A read that fails
for good ends as ``LoadFailed``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from rookery.actors.histories import (
    OTHER_VERSIONS,
    KeyHistories,
    first_fact_number,
    last_fact_number,
)
from rookery.actors.kernel.committer import FactRouter
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.entities.entity import Entity, PendingCommand, chain_of_snapshot
from rookery.actors.kernel.entities.mailbox import (
    BodyStored,
    FactsCaughtUp,
    HistoryLoaded,
    LoadFailed,
    Mailbox,
)
from rookery.bus.ports import Bus, EntitySnapshot, Filter, StoredMessage, TaskSet
from rookery.schemas.codec import FactCodec, restarts_history
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed

__all__ = ["EntityLoader"]

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 0.2
RECENT_MESSAGES = 1_000
"""Of the whole journal: where an entity that missed facts begins to look for them."""
RECENT_FACTOR = 16
"""How much further it looks each time it has not found the last fact that it handled."""


class EntityLoader:
    """One per node; called on the loop."""

    def __init__(
        self,
        bus: Bus,
        histories: KeyHistories,
        codecs: Mapping[str, FactCodec[Any]],
        reactions: FactRouter,
    ) -> None:
        self._bus, self._histories = bus, histories
        self._codecs, self._fact_router = codecs, reactions
        self.tasks = TaskSet()

    def load(self, decider: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        """Read an entity's history; if it is long, the messages after its known state or stored
        snapshot, unless the ``whole`` history is requested."""
        self._drop_stale_history(entity)
        load = self._load(decider, entity, mailbox, whole=whole)
        self.tasks.start(self._run_read(load, mailbox, entity))

    def catch_up(
        self,
        decider: Decider,
        entity: Entity,
        mailbox: Mailbox,
        handled: dict[str, int],
        *,
        skip_unreadable: bool,
    ) -> None:
        """Read the facts of other families under the entity's key that are not in ``handled``. An
        unreadable fact is skipped if it precedes a restart of its history, or if ``looking`` and
        another version may read it; a fact of an observed family is skipped only before a restart.
        """
        self._drop_stale_history(entity)
        catch_up = self._catch_up(
            decider, entity, mailbox, handled, skip_unreadable=skip_unreadable
        )
        self.tasks.start(self._run_read(catch_up, mailbox, entity))

    def store_body(
        self, data: bytes, entity: Entity, pending: PendingCommand, mailbox: Mailbox
    ) -> None:
        """Store a command's large body as a blob."""
        keep = self._store_body(data, entity, pending, mailbox)
        self.tasks.start(self._run_read(keep, mailbox, entity, pending))

    def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Store a snapshot. A failure costs only time."""
        self.tasks.start(self._save(entity, schema, snapshot))

    def _drop_stale_history(self, entity: Entity) -> None:
        if entity.is_stale:
            entity.is_stale = False
            self._histories.drop(entity.id.key)

    async def _run_read(
        self,
        read: Coroutine[Any, Any, None],
        mailbox: Mailbox,
        entity: Entity,
        pending: PendingCommand | None = None,
    ) -> None:
        """Run a read and post a message in any case, because the entity waits for it."""
        try:
            await read
        except CodedError as error:
            mailbox.post(LoadFailed(entity, pending, error))
        except Exception as error:
            log.exception("read failed", extra={"family": entity.id.family})
            failure = Failed("NODE_FAILED", f"{entity.id} cannot be read: {error!r}")
            mailbox.post(LoadFailed(entity, pending, failure))

    async def _load(
        self, decider: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool
    ) -> None:
        messages = await _retry(lambda: self._histories.of_key(entity.id.key))
        if messages is not None:
            tail = [stored for stored in messages if stored.entity == entity.id]
            mailbox.post(HistoryLoaded(entity, None, tail))
            return
        snapshot = None if whole else entity.known
        if snapshot is None and not whole:
            snapshot = await _retry(lambda: self._bus.snapshots.load(entity.id, decider.schema))
        after = snapshot.sequence if snapshot else 0
        tail = await _retry(lambda: self._bus.journal.read(entity.id, after))
        if (
            snapshot is not None
            and not tail
            and not await self._matches_journal(entity.id, snapshot)
        ):
            snapshot, tail = None, await _retry(lambda: self._bus.journal.read(entity.id))
        mailbox.post(HistoryLoaded(entity, snapshot, tail))

    async def _catch_up(
        self,
        decider: Decider,
        entity: Entity,
        mailbox: Mailbox,
        handled: dict[str, int],
        *,
        skip_unreadable: bool,
    ) -> None:
        missed = []
        wanted = decider.reacts_to | decider.observes
        stored = await _retry(lambda: self._recent_of_key(entity.id.key, wanted, handled))
        restarts = {one.entity.family: one.sequence for one in stored if restarts_history(one.body)}
        for one in stored:
            family = one.entity.family
            if family not in wanted:
                continue
            after = handled.get(family, 0)
            try:
                found = self._fact_router.read_message(decider, one, self._codecs[family], after)
            except CodedError as error:
                restarted = decider.family if family in decider.older_codecs else family
                left_behind = one.sequence < restarts.get(restarted, 0)
                if not left_behind and (
                    family in decider.observes
                    or (error.code in OTHER_VERSIONS and not skip_unreadable)
                ):
                    raise
                log.error(
                    "unreadable fact skipped", extra={"code": error.code, "seq": one.sequence}
                )
                continue
            if found is not None:
                missed.append(found)
        mailbox.post(FactsCaughtUp(entity, missed, stored[-1].sequence if stored else 0))

    async def _matches_journal(self, entity: EntityId, snapshot: EntitySnapshot) -> bool:
        """Whether the entity's last message is the snapshot's; if not, the journal has been
        replaced."""
        last = await _retry(lambda: self._bus.journal.last(entity))
        if last is None or last.sequence != snapshot.sequence:
            return False
        return last.chain == chain_of_snapshot(snapshot)

    async def _recent_of_key(
        self, key: str, wanted: Collection[str], handled: Mapping[str, int]
    ) -> list[StoredMessage]:
        """The newest messages of a key, from a point on before which every fact of the ``wanted``
        families is handled: a session may be years old. All of them, if the node has them."""
        known = await self._histories.of_key(key)
        if known is not None:
            return known
        end, newest = await self._bus.journal.end(), RECENT_MESSAGES
        while True:
            after = max(0, end - newest)
            pages = [page async for page in self._bus.journal.scan(Filter(key=key), after)]
            found = [stored for page in pages for stored in page]
            if not after or (found and await self._is_handled_before(found, wanted, handled)):
                return found
            newest *= RECENT_FACTOR

    async def _is_handled_before(
        self, found: Sequence[StoredMessage], wanted: Collection[str], handled: Mapping[str, int]
    ) -> bool:
        """Whether all facts of these families before the found messages are handled."""
        first = {one.entity.family: one for one in reversed(found)}
        for family in wanted:
            if family in first:
                number = first_fact_number(first[family])
                if number is None or number - 1 > handled.get(family, 0):
                    return False
            else:
                entity = EntityId(family, found[0].entity.key)
                last = await self._bus.journal.last(entity)
                if last is not None and last_fact_number(entity, [last]) > handled.get(family, 0):
                    return False
        return True

    async def _store_body(
        self, data: bytes, entity: Entity, pending: PendingCommand, mailbox: Mailbox
    ) -> None:
        digest = await _retry(lambda: self._bus.blobs.put(data))
        mailbox.post(BodyStored(entity, pending, digest))

    async def _save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        try:
            await self._bus.snapshots.save(entity, schema, snapshot)
        except CodedError as error:
            log.info("snapshot not stored", extra={"code": error.code})


async def _retry(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Retry until the server answers."""
    while True:
        try:
            return await attempt()
        except Failed as error:
            if not CODES[error.code].retryable:
                raise
            await asyncio.sleep(RETRY_S)
