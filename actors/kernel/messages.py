"""What is posted to an actor's mailbox, besides the committer's ``Outcomes``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rookery.actors.kernel.entity import Entity, Work
from rookery.actors.kernel.mailbox import Room
from rookery.actors.kernel.watermark import Ticket
from rookery.bus.ports import Delivery, Snapshot, Stored
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError

__all__ = [
    "Arrivals",
    "Caught",
    "Forget",
    "Handover",
    "Internal",
    "Kept",
    "Loaded",
    "Passivate",
    "Quiesce",
    "Resume",
    "Unread",
]


class Arrivals(list[Delivery]):
    """Commands that came through a door, in order."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self.room = room
        """What those of them that are requests leave when they end."""


class Internal(NamedTuple):
    """A command from inside the node."""

    command: Command[Any]
    delivery: Delivery | None = None
    """Set if somebody waits for the answer."""


class Handover(NamedTuple):
    """Facts another family committed under a key: to be reacted to."""

    source: EntityId
    sequence: int
    due: list[tuple[int, Fact, Ticket]]
    """The facts, each with its number and its place on the horizon's books."""


class Loaded(NamedTuple):
    """An entity's history."""

    home: Entity
    """Who asked: by now its actor may have let go of it and keep another one under its key."""
    snapshot: Snapshot | None
    tail: list[Stored]


class Caught(NamedTuple):
    """What other families committed under a key since the last facts handled."""

    home: Entity
    missed: list[Handover]
    seen: int
    """Last sequence over all families of the key."""


class Resume(NamedTuple):
    """Facts whose effects may not have ended: their node died."""

    key: str
    sequence: int
    facts: list[Fact]
    ticket: Ticket
    """Held until the effects are on the horizon's books themselves."""


class Kept(NamedTuple):
    """A large body is in the blob store."""

    home: Entity
    work: Work
    digest: str


class Unread(NamedTuple):
    """What an entity, or one of its commands, waited for will not come."""

    home: Entity
    work: Work | None
    error: CodedError


class Quiesce(NamedTuple):
    """Say so once nothing is under way any more; leave snapshots behind."""

    then: Callable[[int], None]
    """Told how many messages the actor has worked off in its life."""


class Forget(NamedTuple):
    """Let go of keys that another node owns, or may have owned meanwhile."""

    gone: Callable[[str], bool]
    then: Callable[[], None]
    """Told when nothing decided before is on its way any more."""


class Passivate(NamedTuple):
    """Let go of entities nobody has touched since ``before_ms``."""

    before_ms: int
