"""What is posted to an actor's mailbox, besides the committer's ``CommitResults``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.mailbox import InFlightLimit
from rookery.actors.kernel.watermark import WatermarkHold
from rookery.bus.ports import Delivery, EntitySnapshot, StoredMessage
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError

__all__ = [
    "BodyStored",
    "CommandsArrived",
    "DrainActor",
    "FactsCaughtUp",
    "FactsCommitted",
    "HistoryLoaded",
    "LoadFailed",
    "LocalCommand",
    "Passivate",
    "ReleaseEntities",
    "ResumeEffects",
]


class CommandsArrived(list[Delivery]):
    """Commands that came through a door, in order."""

    def __init__(self, room: InFlightLimit) -> None:
        super().__init__()
        self.in_flight_limit = room
        """What those of them that are requests leave when they end."""


class LocalCommand(NamedTuple):
    """A command from inside the node."""

    command: Command[Any]
    delivery: Delivery | None = None
    """Set if somebody waits for the answer."""


class FactsCommitted(NamedTuple):
    """Facts another family committed under a key: to be reacted to."""

    source: EntityId
    sequence: int
    numbered: list[tuple[int, Fact, WatermarkHold]]
    """The facts, each with its number and its place on the horizon's books."""


class HistoryLoaded(NamedTuple):
    """An entity's history."""

    entity: Entity
    """Who asked: by now its actor may have let go of it and keep another one under its key."""
    snapshot: EntitySnapshot | None
    tail: list[StoredMessage]


class FactsCaughtUp(NamedTuple):
    """What other families committed under a key since the last facts handled."""

    entity: Entity
    missed: list[FactsCommitted]
    key_sequence: int
    """Last sequence over all families of the key."""


class ResumeEffects(NamedTuple):
    """Facts whose effects may not have ended: their node died."""

    key: str
    sequence: int
    facts: list[Fact]
    hold: WatermarkHold
    """Held until the effects are on the horizon's books themselves."""


class BodyStored(NamedTuple):
    """A large body is in the blob store."""

    entity: Entity
    pending: PendingCommand
    digest: str


class LoadFailed(NamedTuple):
    """What an entity, or one of its commands, waited for will not come."""

    entity: Entity
    pending: PendingCommand | None
    error: CodedError


class DrainActor(NamedTuple):
    """Say so once nothing is under way any more; leave snapshots behind."""

    on_quiet: Callable[[int], None]
    """Told how many messages the actor has worked off in its life."""


class ReleaseEntities(NamedTuple):
    """Let go of keys that another node owns, or may have owned meanwhile."""

    is_lost: Callable[[str], bool]
    on_done: Callable[[], None]
    """Told when nothing decided before is on its way any more."""


class Passivate(NamedTuple):
    """Let go of entities nobody has touched since ``before_ms``."""

    before_ms: int
