"""``PartitionRecovery``: continues the work of a partition's previous owner.

The previous owner saved its watermark: facts above it, and some facts listed below it, may lack
reactions or effects. Recovery passes these facts to the actors again; finished work is recognised
as done. So the cost of a recovery depends on the work in flight, not on the length of the journal
or of a call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from rookery.actors.kernel.committer import FactRouter
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.effect_runner import Watermark, WatermarkState
from rookery.actors.kernel.entities.mailbox import Mailbox, ResumeEffects
from rookery.bus.ports import PARTITIONS, Bus, EntitySnapshot, Filter, StoredMessage
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed

__all__ = [
    "PartitionRecovery",
    "save_idle_watermark",
]

log = logging.getLogger(__name__)

SCHEMA: Final = 3
SCHEMA_OF_ANY_JOURNAL: Final = 2
"""Without the journal's identity."""
SCHEMA_WITHOUT_NAMES: Final = 1
"""Without unfinished facts below the watermark."""
UNFINISHED_MAX: Final = 1_000
"""Limit of unfinished facts listed below the watermark; recovery reads them one by one."""
SLICE_MESSAGES: Final = 256
HELD_MAX: Final = 1_000
"""Recovery pauses (briefly) while more facts than this are unfinished, so that a large backlog does
not delay the heartbeats that renew the claims."""
PAUSE_S: Final = 0.01
PAUSES_MAX: Final = 10

_decode_unfinished = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_decode_state = msgspec.msgpack.Decoder(tuple[tuple[int, ...], str]).decode


class PartitionRecovery:
    """One per node; called on the loop."""

    def __init__(
        self,
        bus: Bus,
        deciders: Sequence[Decider],
        mailboxes: Mapping[str, Mailbox],
        reactions: FactRouter,
        watermark: Watermark,
        *,
        is_certain: Callable[[], bool],
        on_newer_term: Callable[[], None],
    ) -> None:
        """``certain``: whether no other node can own the served partitions. ``on_newer_term``:
        called when another node has begun a term in one of them."""
        self._bus, self._is_certain, self._on_newer_term = bus, is_certain, on_newer_term
        self._codecs = Decider.codecs_of(deciders)
        self._effect_mailboxes = {c.family: mailboxes[c.family] for c in deciders if c.effect_types}
        self._fact_router, self._watermark = reactions, watermark
        self._saved_states: dict[int, WatermarkState] = {}
        """The watermark saved for each recovered partition; this node's own covers no others."""
        self._journal = ""
        """The identity of the journal they belong to."""

    async def save(self, served: frozenset[int]) -> None:
        """Save the watermark for the partitions' next owner, which reads more of the journal
        without it."""
        try:
            end = await self._bus.journal.verified_end(served)
            if not self._is_certain():  # The next owner's watermark is the valid one.
                return
            # Only this node has appended up to this point since its read, so its holds cover the
            # rest.
            self._watermark.advance(end)
            now = self._watermark.state(UNFINISHED_MAX)
            kept = _encode_state(now, self._journal)
            for partition in served & self._saved_states.keys():
                saved = self._saved_states.get(partition, now)  # Released during the loop?
                if now.through > saved.through or (
                    now.through == saved.through and now.unfinished != saved.unfinished
                ):
                    await self._bus.snapshots.save(_snapshot_entity(partition), SCHEMA, kept)
                    if partition in self._saved_states:
                        self._saved_states[partition] = now
        except Failed as error:
            log.info("watermark not saved", extra={"code": error.code})
            if error.code == "CLAIM_LOST":
                self._on_newer_term()

    async def recover(self, partitions: frozenset[int]) -> None:
        """Pass the previous owners' unfinished facts of these partitions to the actors."""
        journal = await self._bus.journal.identity()
        if self._journal not in ("", journal):
            self._watermark.reset()
            self._saved_states.clear()
        self._journal = journal
        saved_states = {partition: await self._saved_state(partition) for partition in partitions}
        await self._redispatch_named(saved_states)
        lowest = min((saved.through for saved in saved_states.values()), default=0)
        async for page in self._bus.journal.scan(Filter(), lowest):
            for first in range(0, len(page), SLICE_MESSAGES):
                for stored in page[first : first + SLICE_MESSAGES]:
                    saved = saved_states.get(self._bus.partition(stored.entity.key))
                    if saved is not None and stored.sequence > saved.through:
                        self._redispatch(stored)
                    self._watermark.advance(stored.sequence)
                await self._throttle()
        self._saved_states |= saved_states

    def release(self, partitions: frozenset[int]) -> None:
        """Forget the saved watermarks of partitions that moved to another node."""
        for partition in partitions:
            self._saved_states.pop(partition, None)

    async def _saved_state(self, partition: int) -> WatermarkState:
        """The previous owner's watermark of the partition; an initial one if it belongs to another
        journal."""
        snapshots, name = self._bus.snapshots, _snapshot_entity(partition)
        if kept := await snapshots.load(name, SCHEMA):
            unfinished, journal = _decode_state(kept.body)
            return (
                WatermarkState(kept.sequence, unfinished)
                if journal == self._journal
                else WatermarkState()
            )
        if kept := await snapshots.load(name, SCHEMA_OF_ANY_JOURNAL):
            return WatermarkState(kept.sequence, _decode_unfinished(kept.body))
        kept = await snapshots.load(name, SCHEMA_WITHOUT_NAMES)
        return WatermarkState(kept.sequence) if kept else WatermarkState()

    async def _redispatch_named(self, saved_states: Mapping[int, WatermarkState]) -> None:
        """Redispatch the facts listed below the watermarks, in order."""
        named = {
            (sequence, partition)
            for partition, saved in saved_states.items()
            for sequence in saved.unfinished
        }
        sequences = sorted({sequence for sequence, _ in named})
        for first in range(0, len(sequences), SLICE_MESSAGES):
            some = sequences[first : first + SLICE_MESSAGES]
            for stored in await asyncio.gather(*map(self._bus.journal.at, some)):
                if stored is None:
                    continue
                if (stored.sequence, self._bus.partition(stored.entity.key)) in named:
                    self._redispatch(stored)
            await self._throttle()

    async def _throttle(self) -> None:
        """Yield to the loop, and wait briefly while many facts are unfinished."""
        await asyncio.sleep(0)
        for _ in range(PAUSES_MAX):
            if self._watermark.held <= HELD_MAX:
                return
            await asyncio.sleep(PAUSE_S)

    def _redispatch(self, stored: StoredMessage) -> None:
        family, key = stored.entity
        if family not in self._codecs:
            return
        hold = self._watermark.hold(stored.sequence)
        try:
            facts = self._codecs[family].decode(stored.body)
            if facts:
                self._fact_router.publish(stored.entity, stored.sequence, facts)
        except CodedError as error:  # The hold stays, for a version that can read the fact.
            log.error("fact not readable", extra={"code": error.code, "seq": stored.sequence})
            return
        if facts and family in self._effect_mailboxes:
            self._effect_mailboxes[family].post(ResumeEffects(key, stored.sequence, facts, hold))
        else:
            hold.release()


def _snapshot_entity(partition: int) -> EntityId:
    return EntityId("kernel", f"partition-{partition}")


def _encode_state(state: WatermarkState, journal: str) -> EntitySnapshot:
    return EntitySnapshot(state.through, msgspec.msgpack.encode((state.unfinished, journal)))


async def save_idle_watermark(bus: Bus) -> None:
    """Save for every partition that all facts of the journal are done, as a node does that stops
    without work. For a writer of finished runs; no node may serve the realm."""
    done = _encode_state(WatermarkState(await bus.journal.end()), await bus.journal.identity())
    for partition in range(PARTITIONS):
        await bus.snapshots.save(_snapshot_entity(partition), SCHEMA, done)
