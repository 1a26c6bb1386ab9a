"""What an actor may ask of its node: the few doors out of an actor's thread.

Everything here is callable from any thread and returns at once; the work happens on the bus's loop
and comes back, if it does, as a message in the actor's mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.completions import Completions
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.metrics import KernelMetrics
from rookery.actors.kernel.watermark import WatermarkHold
from rookery.bus.ports import Delivery, EntitySnapshot
from rookery.schemas.envelope import EntityId

__all__ = ["ActorContext"]


class ActorContext(Protocol):
    """A node as its actors see it."""

    node: str
    now_ms: Callable[[], int]
    metrics: KernelMetrics
    failpoints: Failpoints
    payload_bytes_max: int
    """Of a command's body."""

    def next_message_id(self) -> str:
        """An id no other message has or will have, on any node."""

    def commit(self, commits: Sequence[Commit], closing: Completions) -> None:
        """Make these durable, then tell; tell at once what needs no commit."""

    def redirect(self, delivery: Delivery, verb: str) -> None:
        """Have the query ``verb`` answer this."""

    def load(self, concern: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        """Fetch an entity's history, the ``whole`` of it or what is above its snapshot."""

    def catch_up(
        self, concern: Decider, entity: Entity, mailbox: Mailbox, *, looking: bool
    ) -> None:
        """Fetch what other families did under the entity's key above what it has handled;
        ``looking``: but for what can only be read by another version."""

    def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Keep a snapshot."""

    def store_body(self, entity: Entity, work: PendingCommand, mailbox: Mailbox) -> None:
        """Put a command's large body into the blob store."""

    def resume_effects(
        self, key: str, sequence: int, effects: Sequence[Effect], ticket: WatermarkHold
    ) -> None:
        """Start again the effects of a fact of ``key`` that stands at ``sequence``, on ``ticket``
        so far."""

    def ensure_effects(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Start what the state of ``key`` after ``sequence`` calls for, unless it is under way."""

    def quarantine(self, work: PendingCommand, error: Exception) -> None:
        """Set aside a command that made its actor fail again and again."""

    def actor_failed(self, concern: Decider) -> None:
        """The actor of this concern is gone; start another."""

    def report_cached(self, family: str, entities: int) -> None:
        """How many entities the family's actor keeps."""
