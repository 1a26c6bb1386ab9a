"""A node: its settings, what its actors may ask of it, and the facts that it writes of itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.effect_runner import WatermarkHold
from rookery.actors.kernel.entities.entity import Entity, PendingCommand
from rookery.actors.kernel.entities.mailbox import Mailbox
from rookery.actors.kernel.entities.unit_of_work import Commit, Completions, UnitOfWork
from rookery.actors.kernel.executors.failpoints import Failpoints
from rookery.actors.kernel.runtime.ownership import NodeIdentity
from rookery.actors.keys.ed25519 import SigningKey
from rookery.actors.messages import FactRecorded, RecordFact
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.bus.ports import Delivery, EntitySnapshot
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import DEFAULT_CLASSES, Command, EntityId, Fact, FactClasses
from rookery.schemas.facts.node import NODE_FACTS

__all__ = ["ActorContext", "KernelSettings", "NodeDecider", "NodeState"]

# --- settings -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The settings that ``ops`` gives a kernel."""

    identity: NodeIdentity
    now_ms: Callable[[], int]
    uptime_s: Callable[[], float]
    """A clock that is never set and runs while the machine sleeps."""
    metrics: KernelMetrics = NO_METRICS
    on_committed: Callable[[Sequence[Fact]], None] | None = None
    """Hears the facts of each commit of this node, if set; quick, and it raises nothing."""
    failpoints: Failpoints = field(default_factory=Failpoints)
    claim_s: int = 0
    """How long an unrenewed claim lives; 0: as long as the servers call for."""
    is_cluster: bool = False
    """Whether the servers elect leaders."""
    processes: int = 1
    """How many processes start together as one node; they share the partitions at once."""
    passivate_after_ms: int = 600_000
    drain_timeout_s: float = 10.0
    payload_bytes_max: int = 1 << 20
    classes: FactClasses = DEFAULT_CLASSES
    """What the facts of the realm claim at least."""
    key: SigningKey | None = None
    """Signs checkpoints of what this node appends; without one there are none."""


# --- context --------------------------------------------------------------------------------------

# Every method may be called from any thread and returns at once. The work runs on the bus's loop;
# its result, if any, arrives as a message in the actor's mailbox.


class ActorContext(Protocol):
    """A node as its actors see it."""

    node: str
    now_ms: Callable[[], int]
    metrics: KernelMetrics
    failpoints: Failpoints
    payload_bytes_max: int
    """The size limit of a command's body."""
    classes: FactClasses
    """What the facts of the realm claim at least."""

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


# --- facts ----------------------------------------------------------------------------------------


class NodeState(msgspec.Struct, frozen=True):
    """Empty: no decision depends on a node's facts."""


class NodeDecider(Decider):
    """The rules of the family ``node``: every node writes its own entity."""

    family = "node"
    codec: FactCodec[Any] = FactCodec(NODE_FACTS)
    initial_state = NodeState()

    def check_key(self, key: str) -> None:
        """Accept any key: the kernel sends its own node's name."""

    def decide(
        self, state: NodeState, command: Command[RecordFact], *, now_ms: int
    ) -> Sequence[Fact]:
        del state, now_ms
        return [command.body.fact]

    def evolve(self, state: NodeState, fact: Fact) -> NodeState:
        del fact
        return state

    def reply(
        self, state: NodeState, command: Command[RecordFact], facts: Sequence[Fact]
    ) -> FactRecorded:
        del state, command, facts
        return FactRecorded()
