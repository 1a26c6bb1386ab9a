"""Taking up partitions where their last owner left off.

The last owner kept its horizon; above it stand facts whose reactions or effects may be missing.
They are handed to the actors again: what was done before is recognised, the rest is done now.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from rookery.actors.kernel.concern import Concern
from rookery.actors.kernel.horizon import Horizon
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import Resume
from rookery.actors.kernel.reactions import Reactions
from rookery.bus.ports import Bus, Filter, Snapshot, Stored
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed

__all__ = ["Takeover"]

log = logging.getLogger(__name__)

SCHEMA = 1


class Takeover:
    """One a node; called on the loop."""

    def __init__(
        self,
        bus: Bus,
        concerns: Sequence[Concern],
        mailboxes: Mapping[str, Mailbox],
        reactions: Reactions,
        horizon: Horizon,
    ) -> None:
        self._bus = bus
        self._codecs: dict[str, FactCodec[Any]] = {c.family: c.codec for c in concerns}
        self._effective = {c.family: mailboxes[c.family] for c in concerns if c.has_effects}
        self._reactions, self._horizon = reactions, horizon
        self._saved: dict[int, int] = {}
        """The horizons kept of partitions that are taken up: our own says nothing of others."""

    async def save(self, served: frozenset[int]) -> None:
        """Keep the horizon for the next owner of these, who reads more without it."""
        try:
            # Of what others did since, nothing is left to this node; of its own, tickets tell.
            self._horizon.passed(await self._bus.journal.end())
            sequence = self._horizon.now()
            for partition in served & self._saved.keys():
                if sequence > self._saved.get(partition, sequence):  # Left meanwhile?
                    kept = Snapshot(sequence, b"")
                    await self._bus.snapshots.save(_name(partition), SCHEMA, kept)
                    if partition in self._saved:
                        self._saved[partition] = sequence
        except Failed as error:
            log.info("the horizon was not kept", extra={"code": error.code})

    async def resume(self, partitions: frozenset[int]) -> None:
        """Hand over again what stands above the horizon of these partitions."""
        horizons: dict[int, int] = {}
        for partition in partitions:
            kept = await self._bus.snapshots.load(_name(partition), SCHEMA)
            horizons[partition] = kept.sequence if kept else 0
        async for page in self._bus.journal.scan(Filter(), min(horizons.values(), default=0)):
            for stored in page:
                horizon = horizons.get(self._bus.partition(stored.entity.key))
                if horizon is not None and stored.sequence > horizon:
                    self._again(stored)
                self._horizon.passed(stored.sequence)
        self._saved |= horizons

    def leave(self, partitions: frozenset[int]) -> None:
        """Somebody else's horizon counts for these from now on."""
        for partition in partitions:
            self._saved.pop(partition, None)

    def _again(self, stored: Stored) -> None:
        family, key = stored.entity
        if family not in self._codecs:
            return
        ticket = self._horizon.open(stored.sequence)
        try:
            facts = self._codecs[family].decode(stored.body)
            self._reactions.hand_over(stored.entity, stored.sequence, facts)
        except CodedError as error:  # The ticket stays open, for a version that can read it.
            log.error("a fact cannot be read", extra={"code": error.code, "seq": stored.sequence})
            return
        if family in self._effective:
            self._effective[family].post(Resume(key, stored.sequence, facts, ticket))
        else:
            ticket.close()


def _name(partition: int) -> EntityId:
    return EntityId("kernel", f"partition-{partition}")
