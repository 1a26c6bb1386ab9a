"""The messages of an actor's mailbox, apart from the committer's ``CommitResults``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from rookery.actors.kernel.effect_runner import WatermarkHold
from rookery.actors.kernel.entities.entity import Entity, PendingCommand
from rookery.actors.kernel.entities.mailbox import InFlightLimit, Mailbox
from rookery.bus.ports import BusLoop, Delivery, EntitySnapshot, StoredMessage
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import CodedError

if TYPE_CHECKING:
    from rookery.actors.kernel.entities.unit_of_work import UnitOfWork

__all__ = [
    "BodyStored",
    "CommandsArrived",
    "CommitHeld",
    "DrainActor",
    "FactsCaughtUp",
    "FactsCommitted",
    "HistoryLoaded",
    "LoadFailed",
    "Passivate",
    "ReleaseEntities",
    "ReloadBroken",
    "ResumeEffects",
    "wait_quiet",
]


class CommandsArrived(list[Delivery]):
    """Commands from the bus, in order."""

    def __init__(self, limit: InFlightLimit) -> None:
        super().__init__()
        self.in_flight_limit = limit
        """The limit that the requests among them exit when they end."""


class FactsCommitted(NamedTuple):
    """Facts that another family committed under a key; each may cause a reaction."""

    source: EntityId
    sequence: int
    numbered: list[tuple[int, Fact, WatermarkHold]]
    """The facts that matter to the actor's decider, each with its number in its family and a
    watermark hold."""
    first: int
    """The numbers of the message's first and last fact."""
    last: int


class HistoryLoaded(NamedTuple):
    """An entity's history has been read."""

    entity: Entity
    """The entity that requested the read. Its actor may have evicted it since, and hold another
    under the same key."""
    snapshot: EntitySnapshot | None
    tail: list[StoredMessage]


class FactsCaughtUp(NamedTuple):
    """Facts that other families committed under a key since the last ones handled."""

    entity: Entity
    missed: list[FactsCommitted]
    key_sequence: int
    """The last sequence of all the key's families."""


class ResumeEffects(NamedTuple):
    """Facts whose effects may be unfinished because the partition's owner changed."""

    key: str
    sequence: int
    facts: list[Fact]
    hold: WatermarkHold
    """Released when the effects have watermark holds of their own."""


class CommitHeld(NamedTuple):
    """Commit held facts now, unless they are committed."""

    unit: UnitOfWork


class BodyStored(NamedTuple):
    """A large body is stored as a blob."""

    entity: Entity
    pending: PendingCommand
    digest: str


class LoadFailed(NamedTuple):
    """A read for an entity, or for one of its commands, has failed for good."""

    entity: Entity
    pending: PendingCommand | None
    error: CodedError


class DrainActor(NamedTuple):
    """Call ``on_quiet`` once nothing is pending or in flight, and store snapshots."""

    on_quiet: Callable[[int], None]
    """Called with the number of messages the actor has processed."""


class ReleaseEntities(NamedTuple):
    """Evict keys that another node owns or may have owned meanwhile."""

    is_lost: Callable[[str], bool]
    on_done: Callable[[], None]
    """Called when the commits decided before have been passed to the committer."""


class ReloadBroken(NamedTuple):
    """Fold an entity again, since a damaged message under its key was quarantined."""

    key: str
    family: str
    """Of the message; other families of the key are folded again if they are broken, too."""


class Passivate(NamedTuple):
    """Evict entities that were last used before ``before_ms``."""

    before_ms: int


async def wait_quiet(mailbox: Mailbox, loop: BusLoop) -> int:
    """Wait until the mailbox's actor is idle; the number of messages it has processed."""
    quiet: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def resolve(processed: int) -> None:
        if not quiet.done():
            quiet.set_result(processed)

    mailbox.post(DrainActor(lambda processed: loop.call_soon(resolve, processed)))
    return await quiet
