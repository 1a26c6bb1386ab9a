"""``ActorContext``: what an actor may ask of its node.

Every method may be called from any thread and returns at once. The work runs on the bus's loop; its
result, if any, arrives as a message in the actor's mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rookery.actors.kernel.committer import Commit, Completions
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.effect_runner import WatermarkHold
from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.kernel_settings import KernelMetrics
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.unit_of_work import UnitOfWork
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
    """The size limit of a command's body."""

    def run_soon(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the bus's loop. Any thread."""

    def next_message_id(self) -> str:
        """A message id that is unique among all nodes."""

    def commit(self, commits: Sequence[Commit], completions: Completions) -> None:
        """Commit these, then complete them; complete at once those that need no commit."""

    def start_early(self, unit: UnitOfWork, mailbox: Mailbox) -> None:
        """Start the effects of held facts, and post ``CommitHeld`` when they may wait no longer. A
        node that does not act for the key has the facts committed at once."""

    def redirect(self, delivery: Delivery, verb: str) -> None:
        """Let the query ``verb`` answer this delivery."""

    def load(self, decider: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        """Load an entity's history: from its known state or snapshot, or the ``whole`` of it."""

    def catch_up(
        self, decider: Decider, entity: Entity, mailbox: Mailbox, *, skip_unreadable: bool
    ) -> None:
        """Read the facts of other families under the entity's key that it has not handled.
        ``looking``: skip facts that only another version can read."""

    def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        """Store a snapshot."""

    def store_body(self, entity: Entity, pending: PendingCommand, mailbox: Mailbox) -> None:
        """Store a command's large body as a blob."""

    def resume_effects(
        self, key: str, sequence: int, effects: Sequence[Effect], hold: WatermarkHold
    ) -> None:
        """Start again the effects of a fact of ``key``, committed at ``sequence``; then release
        ``hold``."""

    def ensure_effects(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        """Start the effects that the state of ``key`` after ``sequence`` calls for, unless they are
        running."""

    def quarantine(self, pending: PendingCommand, error: Exception) -> None:
        """Set aside a command that made its actor fail repeatedly."""

    def actor_failed(self, decider: Decider) -> None:
        """Replace this decider's actor, which has failed."""
