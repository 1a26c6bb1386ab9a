"""What an actor may ask of its node: the few doors out of an actor's thread.

Everything here is callable from any thread and returns at once; the work happens on the bus's loop
and comes back, if it does, as a message in the actor's mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.completions import Closing
from rookery.actors.kernel.decider import Concern, Effect
from rookery.actors.kernel.entity import Entity, Work
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.metrics import Observer
from rookery.actors.kernel.watermark import Ticket
from rookery.bus.ports import Delivery, Snapshot
from rookery.schemas.envelope import EntityId

__all__ = ["Hub"]


class Hub(Protocol):
    """A node as its actors see it."""

    node: str
    now_ms: Callable[[], int]
    observer: Observer
    failpoints: Failpoints
    payload_bytes_max: int
    """Of a command's body."""

    def next_message_id(self) -> str:
        """An id no other message has or will have, on any node."""

    def commit(self, commits: Sequence[Commit], closing: Closing) -> None:
        """Make these durable, then tell; tell at once what needs no commit."""

    def divert(self, delivery: Delivery, verb: str) -> None:
        """Have the query ``verb`` answer this."""

    def load(self, concern: Concern, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        """Fetch an entity's history, the ``whole`` of it or what is above its snapshot."""

    def catch_up(
        self, concern: Concern, entity: Entity, mailbox: Mailbox, *, looking: bool
    ) -> None:
        """Fetch what other families did under the entity's key above what it has handled;
        ``looking``: but for what can only be read by another version."""

    def save(self, entity: EntityId, schema: int, snapshot: Snapshot) -> None:
        """Keep a snapshot."""

    def keep(self, entity: Entity, work: Work, mailbox: Mailbox) -> None:
        """Put a command's large body into the blob store."""

    def perform(self, key: str, sequence: int, effects: Sequence[Effect], ticket: Ticket) -> None:
        """Start again the effects of a fact of ``key`` that stands at ``sequence``, on ``ticket``
        so far."""

    def go_on(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Start what the state of ``key`` after ``sequence`` calls for, unless it is under way."""

    def quarantine(self, work: Work, error: Exception) -> None:
        """Set aside a command that made its actor fail again and again."""

    def actor_failed(self, concern: Concern) -> None:
        """The actor of this concern is gone; start another."""

    def cached(self, family: str, entities: int) -> None:
        """How many entities the family's actor keeps."""
