"""Reads that actors wait for without waiting: history, missed facts, large bodies.

Each read is a task on the bus's loop that ends as a message in the actor's mailbox. Outages are
waited out here, since an entity can decide nothing without its history; what will never come is
said as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.entity import Entity, PendingCommand, chain_of_snapshot
from rookery.actors.kernel.fact_router import FactRouter
from rookery.actors.kernel.history_restart import OTHER_VERSIONS
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import BodyStored, FactsCaughtUp, HistoryLoaded, LoadFailed
from rookery.bus.ports import Bus, EntitySnapshot, Filter, StoredMessage, TaskSet
from rookery.schemas.codec import FactCodec, restarts_history
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed

__all__ = ["EntityLoader"]

log = logging.getLogger(__name__)

T = TypeVar("T")
RETRY_S = 0.2


class EntityLoader:
    """One a node; called on the loop."""

    def __init__(
        self, bus: Bus, codecs: Mapping[str, FactCodec[Any]], reactions: FactRouter
    ) -> None:
        self._bus, self._codecs, self._fact_router = bus, codecs, reactions
        self.tasks = TaskSet()

    def load(self, concern: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        """An entity's snapshot, unless the ``whole`` history is wanted, and the messages after."""
        load = self._load(concern, entity, mailbox, whole=whole)
        self.tasks.start(self._run_read(load, mailbox, entity))

    def catch_up(
        self,
        concern: Decider,
        entity: Entity,
        mailbox: Mailbox,
        handled: dict[str, int],
        *,
        looking: bool,
    ) -> None:
        """The facts of other families under the entity's key that are not among ``handled``. One
        that cannot be read is passed over if no version can read it, or if ``looking``; but not one
        that is to be folded."""
        catch_up = self._catch_up(concern, entity, mailbox, handled, looking=looking)
        self.tasks.start(self._run_read(catch_up, mailbox, entity))

    def store_body(
        self, data: bytes, entity: Entity, work: PendingCommand, mailbox: Mailbox
    ) -> None:
        """Put a command's large body into the blob store."""
        keep = self._store_body(data, entity, work, mailbox)
        self.tasks.start(self._run_read(keep, mailbox, entity, work))

    def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Keep a snapshot; losing one loses nothing."""
        self.tasks.start(self._save(entity, schema, snapshot))

    async def _run_read(
        self,
        read: Coroutine[Any, Any, None],
        mailbox: Mailbox,
        entity: Entity,
        work: PendingCommand | None = None,
    ) -> None:
        """Every read ends as a message, or its entity would wait for ever."""
        try:
            await read
        except CodedError as error:
            mailbox.post(LoadFailed(entity, work, error))
        except Exception as error:
            log.exception("a read failed for good", extra={"family": entity.id.family})
            failure = Failed("NODE_FAILED", f"{entity.id} cannot be read: {error!r}")
            mailbox.post(LoadFailed(entity, work, failure))

    async def _load(
        self, concern: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool
    ) -> None:
        snapshot = None
        if not whole:
            snapshot = await _retry(lambda: self._bus.snapshots.load(entity.id, concern.schema))
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
        concern: Decider,
        entity: Entity,
        mailbox: Mailbox,
        handled: dict[str, int],
        *,
        looking: bool,
    ) -> None:
        stored = await _retry(lambda: self._all_of_key(entity.id.key))
        missed = []
        wanted = concern.reacts_to | concern.observes
        anew = {one.entity.family: one.sequence for one in stored if restarts_history(one.body)}
        for one in stored:
            family = one.entity.family
            if family not in wanted:
                continue
            try:
                facts = self._codecs[family].decode(one.body)
            except CodedError as error:
                left_behind = one.sequence < anew.get(family, 0)
                if not left_behind and (
                    family in concern.observes or (error.code in OTHER_VERSIONS and not looking)
                ):
                    raise
                log.error("a fact is passed over", extra={"code": error.code, "seq": one.sequence})
                continue
            after = handled.get(family, 0)
            missed.append(self._fact_router.to_message(one.entity, one.sequence, facts, after))
        mailbox.post(FactsCaughtUp(entity, missed, stored[-1].sequence if stored else 0))

    async def _matches_journal(self, entity: EntityId, snapshot: EntitySnapshot) -> bool:
        """Whether the entity ends where the snapshot was taken: else another journal is in the
        place of its own."""
        last = await _retry(lambda: self._bus.journal.last(entity))
        if last is None or last.sequence != snapshot.sequence:
            return False
        return last.chain == chain_of_snapshot(snapshot)

    async def _all_of_key(self, key: str) -> list[StoredMessage]:
        pages = self._bus.journal.scan(Filter(key=key))
        return [stored async for page in pages for stored in page]

    async def _store_body(
        self, data: bytes, entity: Entity, work: PendingCommand, mailbox: Mailbox
    ) -> None:
        digest = await _retry(lambda: self._bus.blobs.put(data))
        mailbox.post(BodyStored(entity, work, digest))

    async def _save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        try:
            await self._bus.snapshots.save(entity, schema, snapshot)
        except CodedError as error:
            log.info("a snapshot was not kept", extra={"code": error.code})


async def _retry(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Try until the server answers."""
    while True:
        try:
            return await attempt()
        except Failed as error:
            if not CODES[error.code].retryable:
                raise
            await asyncio.sleep(RETRY_S)
