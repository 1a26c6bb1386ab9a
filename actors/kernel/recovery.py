"""Taking up partitions where their last owner left off.

The last owner kept its horizon: above it stand facts whose reactions or effects may be missing, and
some below it are named. They are handed to the actors again: what was done before is recognised,
the rest is done now. So what a takeover costs is what was under way, however long the journal is
and however long one call takes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.fact_router import FactRouter
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import ResumeEffects
from rookery.actors.kernel.watermark import Watermark, WatermarkState
from rookery.bus.ports import Bus, EntitySnapshot, Filter, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed

__all__ = ["PartitionRecovery"]

log = logging.getLogger(__name__)

SCHEMA: Final = 3
SCHEMA_OF_ANY_JOURNAL: Final = 2
"""It does not say which journal it is about."""
SCHEMA_WITHOUT_NAMES: Final = 1
"""Nothing below such a horizon was unfinished."""
UNFINISHED_MAX: Final = 1_000
"""Named below the horizon: a takeover reads them one by one."""
SLICE_MESSAGES: Final = 256
HELD_MAX: Final = 1_000
"""What was handed over is worked off before more is, if it comes to an end at all: a storm would
hold up the beats that keep the partitions ours."""
PAUSE_S: Final = 0.01
PAUSES_MAX: Final = 10

_decode_unfinished = msgspec.msgpack.Decoder(tuple[int, ...]).decode
_decode_state = msgspec.msgpack.Decoder(tuple[tuple[int, ...], str]).decode


class PartitionRecovery:
    """One a node; called on the loop."""

    def __init__(
        self,
        bus: Bus,
        concerns: Sequence[Decider],
        mailboxes: Mapping[str, Mailbox],
        reactions: FactRouter,
        horizon: Watermark,
        *,
        certain: Callable[[], bool],
        on_displaced: Callable[[], None],
    ) -> None:
        """``certain``: whether nobody else can own what is served. ``on_displaced``: called when
        another node's turn has begun in a partition of this one."""
        self._bus, self._is_certain, self._on_displaced = bus, certain, on_displaced
        self._codecs: dict[str, FactCodec[Any]] = {c.family: c.codec for c in concerns}
        self._effect_mailboxes = {c.family: mailboxes[c.family] for c in concerns if c.has_effects}
        self._fact_router, self._watermark = reactions, horizon
        self._saved_states: dict[int, WatermarkState] = {}
        """The horizons kept of partitions that are taken up: our own says nothing of others."""
        self._journal = ""
        """Which one they are about."""

    async def save(self, served: frozenset[int]) -> None:
        """Keep the horizon for the next owner of these, who reads more without it."""
        try:
            end = await self._bus.journal.verified_end()
            if not self._is_certain():  # Their next owner's word counts, not ours.
                return
            # Up to there only this node has appended here since it read: its tickets tell the rest.
            self._watermark.advance(end)
            now = self._watermark.state(UNFINISHED_MAX)
            kept = EntitySnapshot(
                now.through, msgspec.msgpack.encode((now.unfinished, self._journal))
            )
            for partition in served & self._saved_states.keys():
                saved = self._saved_states.get(partition, now)  # Left meanwhile?
                if now.through > saved.through or (
                    now.through == saved.through and now.unfinished != saved.unfinished
                ):
                    await self._bus.snapshots.save(_snapshot_entity(partition), SCHEMA, kept)
                    if partition in self._saved_states:
                        self._saved_states[partition] = now
        except Failed as error:
            log.info("the horizon was not kept", extra={"code": error.code})
            if error.code == "CLAIM_LOST":
                self._on_displaced()

    async def recover(self, partitions: frozenset[int]) -> None:
        """Hand over again what the last owners of these partitions left."""
        journal = await self._bus.journal.identity()
        if self._journal not in ("", journal):
            self._watermark.reset()
            self._saved_states.clear()
        self._journal = journal
        left = {partition: await self._saved_state(partition) for partition in partitions}
        await self._redispatch_named(left)
        lowest = min((standing.through for standing in left.values()), default=0)
        async for page in self._bus.journal.scan(Filter(), lowest):
            for first in range(0, len(page), SLICE_MESSAGES):
                for stored in page[first : first + SLICE_MESSAGES]:
                    standing = left.get(self._bus.partition(stored.entity.key))
                    if standing is not None and stored.sequence > standing.through:
                        self._redispatch(stored)
                    self._watermark.advance(stored.sequence)
                await self._throttle()
        self._saved_states |= left

    def release(self, partitions: frozenset[int]) -> None:
        """Somebody else's horizon counts for these from now on."""
        for partition in partitions:
            self._saved_states.pop(partition, None)

    async def _saved_state(self, partition: int) -> WatermarkState:
        """What the last owner of the partition says, if it is about this journal."""
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

    async def _redispatch_named(self, left: Mapping[int, WatermarkState]) -> None:
        """Those below the horizons, in order."""
        named = {
            (sequence, partition)
            for partition, standing in left.items()
            for sequence in standing.unfinished
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
        """Let others have the loop, and the actors catch up."""
        await asyncio.sleep(0)
        for _ in range(PAUSES_MAX):
            if self._watermark.held <= HELD_MAX:
                return
            await asyncio.sleep(PAUSE_S)

    def _redispatch(self, stored: StoredMessage) -> None:
        family, key = stored.entity
        if family not in self._codecs:
            return
        ticket = self._watermark.hold(stored.sequence)
        try:
            facts = self._codecs[family].decode(stored.body)
            self._fact_router.publish(stored.entity, stored.sequence, facts)
        except CodedError as error:  # The ticket stays open, for a version that can read it.
            log.error("a fact cannot be read", extra={"code": error.code, "seq": stored.sequence})
            return
        if family in self._effect_mailboxes:
            self._effect_mailboxes[family].post(ResumeEffects(key, stored.sequence, facts, ticket))
        else:
            ticket.release()


def _snapshot_entity(partition: int) -> EntityId:
    return EntityId("kernel", f"partition-{partition}")
