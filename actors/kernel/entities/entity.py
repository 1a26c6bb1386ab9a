"""``Entity``: one subject of a family in memory: its committed state, pending commands and
counters, and the window in which a repeated command is recognised.

It belongs to one actor. It folds history to state and decides nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.histories import chain_end, last_fact_number, last_restart
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.effect_runner import WatermarkHold
from rookery.actors.kernel.entities.mailbox import InFlightLimit
from rookery.bus.ports import Delivery, EntitySnapshot, StoredMessage
from rookery.schemas.digest import ZERO_CHAIN, ChainCursor
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.ids import parse_fact_id, parse_reaction_id

if TYPE_CHECKING:
    from rookery.actors.kernel.entities.unit_of_work import UnitOfWork

__all__ = [
    "DEDUP_COMMANDS_MAX",
    "DEDUP_MS",
    "DedupWindow",
    "Entity",
    "PendingCommand",
    "ReactionSource",
    "chain_of_snapshot",
]

DEDUP_MS = 24 * 3_600_000
DEDUP_COMMANDS_MAX = 10_000


class DedupWindow:
    """The command ids an entity has decided, in order, each with its body's digest.

    It covers one day and at most 10,000 commands. Time is that of the facts, so folding the same
    history always gives the same window.
    """

    def __init__(self, entries: Iterable[tuple[str, str, int]] = ()) -> None:
        self._seen: dict[str, tuple[str, int]] = {i: (digest, at) for i, digest, at in entries}

    def __len__(self) -> int:
        return len(self._seen)

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return ((i, digest, at) for i, (digest, at) in self._seen.items())

    def digest_of(self, command_id: str) -> str | None:
        """The digest a command id was used with; ``None`` if it is not in the window."""
        found = self._seen.get(command_id)
        return None if found is None else found[0]

    def add(self, command_id: str, digest: str, at_ms: int) -> None:
        """Add a command and drop those beyond the window."""
        seen = self._seen
        while seen and next(iter(seen.values()))[1] < at_ms - DEDUP_MS:
            del seen[next(iter(seen))]
        seen.setdefault(command_id, (digest, at_ms))
        if len(seen) > DEDUP_COMMANDS_MAX:
            del seen[next(iter(seen))]


log = logging.getLogger(__name__)


class ReactionSource(NamedTuple):
    """The fact a reaction answers: its family, its number in the family under this key, its
    sequence. ``after`` and ``through`` enclose it and the facts beside it that the decider passes
    over."""

    family: str
    number: int
    sequence: int
    after: int
    """The fact before those passed over; it has to be handled first."""
    through: int
    """The last fact that is handled with this one."""


class PendingCommand(msgspec.Struct, eq=False):
    """A command to be decided, with what its reply needs."""

    command: Command[Any]
    digest: str
    """First 16 hex digits of the body's digest; empty for commands from inside the node."""
    received_s: float
    delivery: Delivery | None = None
    """The delivery from the bus; ``None`` for reactions and the kernel's own commands."""
    source: ReactionSource | None = None
    """Set if this is a reaction."""
    hold: WatermarkHold | None = None
    """Released when a reaction has ended."""
    in_flight_limit: InFlightLimit | None = None
    """Exited when a request has ended."""
    outcome: str = ""
    """``committed``, ``unchanged``, ``repeated`` or ``refused``, by the last decision."""
    commit_alone: bool = False
    """The journal rejected it together with others, so it gets a message of its own."""
    journal_read: bool = False
    """The journal was read for this command before it was decided."""
    from_journal: bool = False
    """This reaction was read from the journal, so all earlier ones of its family are known."""
    conflicts: int = 0
    failures: int = 0

    def finish(self) -> None:
        """Release the hold and the in-flight limit."""
        if self.hold is not None:
            self.hold.release()
        if self.in_flight_limit is not None and self.delivery is not None:
            self.in_flight_limit.exit(self.delivery.by, len(self.delivery.body))
            self.in_flight_limit = None


class _SnapshotBody(msgspec.Struct, array_like=True):
    """The stored form of a snapshot."""

    state: bytes
    chain: str
    fact_count: int
    key_sequence: int
    reacted_counts: dict[str, int]
    dedup: list[tuple[str, str, int]]
    observed_counts: dict[str, int] = {}
    recorded_reactions: dict[str, int] = {}


def chain_of_snapshot(snapshot: EntitySnapshot) -> str:
    """The chain digest of the last message a snapshot contains; empty if the body is invalid."""
    try:
        return msgspec.msgpack.decode(snapshot.body, type=_SnapshotBody).chain
    except msgspec.MsgspecError:
        return ""


class Entity:
    """One entity in its actor's memory."""

    __slots__ = (
        "chain",
        "commands",
        "committing",
        "dedup",
        "effects_to_resume",
        "fact_count",
        "held",
        "id",
        "is_stale",
        "key_sequence",
        "known",
        "load_error",
        "needs_catch_up",
        "observed_counts",
        "reacted_counts",
        "reactions",
        "reads_in_flight",
        "recorded_reactions",
        "required_effects",
        "reread_sequence",
        "saved_fact_count",
        "sequence",
        "skips_unreadable",
        "state",
        "touched_ms",
        "was_reloaded",
    )  # fmt: skip

    def __init__(self, entity_id: EntityId, decider: Decider) -> None:
        self.id = entity_id
        self.reads_in_flight = 0
        """Reads in flight; the entity decides nothing until they are back."""
        self.committing = False
        """An append is in flight; pending commands wait for it and are then decided together."""
        self.held: UnitOfWork | None = None
        """Decided facts that wait a moment, to be committed together with the next ones."""
        self.load_error: CodedError | None = None
        """Why the history cannot be folded; every command is answered with it."""
        self.is_stale = False
        """Another node may have appended to the key: the next read is from the journal."""
        self.saved_fact_count = 0
        self.known: EntitySnapshot | None = None
        """The state from which the next load continues; it is stored nowhere."""
        self.skips_unreadable = False
        """The next catch-up skips facts that only another version can read."""
        self.needs_catch_up = False
        """The facts of other families must be read once the entity's own history is loaded."""
        self.was_reloaded = False
        """The history was loaded, and the effects it calls for have not been started."""
        self.required_effects: frozenset[object] = frozenset()
        """Those effects, by type and key. Facts committed later start their effects themselves."""
        self.reactions: deque[PendingCommand] = deque()
        self.commands: deque[PendingCommand] = deque()
        """Pending commands; they are decided after all pending reactions."""
        self.effects_to_resume: list[tuple[int, list[Fact], WatermarkHold]] = []
        """Committed facts, with their sequence, whose effects start again once the state is loaded.
        """
        self.reread_sequence = 0
        """The sequence for which the history was read again; once, since a second read finds no
        more."""
        self.touched_ms = 0
        self.key_sequence = 0
        """Highest sequence under the key known to be folded here or handled."""
        self.reacted_counts: dict[str, int] = {}
        """Per family, how many of its facts under this key have been reacted to."""
        self.recorded_reactions: dict[str, int] = {}
        """The same, counting only reactions that left a fact."""
        self.state: Any = None
        self.fold(decider, None, ())

    def _reset(self, decider: Decider) -> None:
        """Clear what a read of the journal restores. Facts reacted to stay counted."""
        self.sequence = 0
        self.chain = ZERO_CHAIN
        self.fact_count = 0
        self.saved_fact_count = 0
        self.dedup = DedupWindow()
        self.observed_counts: dict[str, int] = {}
        """Per family, how many of its facts under this key are folded into the state."""
        self.state = decider.initial(self.id.key)

    @property
    def has_pending(self) -> bool:
        """Whether a command or reaction waits to be decided."""
        return bool(self.reactions or self.commands)

    @property
    def is_ready(self) -> bool:
        """Whether a command can be decided now."""
        if self.reads_in_flight or self.committing:
            return False
        return bool(self.reactions or self.commands)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending or in flight."""
        return not (
            self.reactions
            or self.commands
            or self.reads_in_flight
            or self.committing
            or self.held
            or self.effects_to_resume
        )

    def pop_next(self) -> PendingCommand:
        """Remove the next command or reaction to decide."""
        return (self.reactions or self.commands).popleft()

    def requeue(self, pending_commands: Sequence[PendingCommand]) -> None:
        """Put commands back at the front, in this order."""
        for pending in reversed(pending_commands):
            (self.commands if pending.source is None else self.reactions).appendleft(pending)

    def requeue_held(self) -> None:
        """Put the commands of the held facts back, to be decided again."""
        if self.held is not None:
            held, self.held = self.held, None
            self.requeue(held.commands)

    def drain_pending(self) -> list[PendingCommand]:
        """Remove everything pending, so that the key's new owner can do it."""
        self.requeue_held()
        pending_commands = [*self.reactions, *self.commands]
        self.reactions.clear()
        self.commands.clear()
        for _, _, hold in self.effects_to_resume:
            hold.release()
        self.effects_to_resume.clear()
        return pending_commands

    def fold(
        self, decider: Decider, snapshot: EntitySnapshot | None, tail: Sequence[StoredMessage]
    ) -> None:
        """Rebuild the entity from a snapshot, if any, and the messages after it."""
        known, saved = self.known, self.saved_fact_count
        self.known = None
        self.load_error = self._fold_from(decider, snapshot, (), tail)
        if snapshot is not None and snapshot is known:
            self.saved_fact_count = saved
        if self.load_error is None or snapshot is not None:
            return
        restart = last_restart(tail)
        if restart >= 0:
            self.load_error = self._fold_from(decider, None, tail[:restart], tail[restart:])
        if self.load_error is not None:
            self._fold_from(decider, None, tail, ())

    def _fold_from(
        self,
        decider: Decider,
        snapshot: EntitySnapshot | None,
        saved_states: Sequence[StoredMessage],
        tail: Sequence[StoredMessage],
    ) -> CodedError | None:
        """Fold ``tail``; the error if that fails. Messages ``left`` before it are counted and not
        folded."""
        try:
            self._reset(decider)
            if snapshot is not None:
                self._restore(decider, snapshot)
            elif saved_states:
                self.sequence, self.chain = saved_states[-1].sequence, chain_end(saved_states)
                self.fact_count = last_fact_number(self.id, saved_states)
            cursor = ChainCursor(self.chain)
            renumber = False
            for stored in tail:
                if stored.quarantined_through:
                    self._pass_over(cursor, stored)
                else:
                    self._fold_message(decider, cursor, stored, renumber=renumber)
                renumber = stored.quarantined_through > 0
        except CodedError as error:
            return error
        except (
            Exception
        ) as error:  # A fold is total; a bug in one entity's must not stop the actor.
            log.exception("entity not folded", extra={"family": self.id.family})
            return Failed("NODE_FAILED", f"{self.id} cannot be folded: {error!r}")
        return None

    def _restore(self, decider: Decider, snapshot: EntitySnapshot) -> None:
        saved = msgspec.msgpack.decode(snapshot.body, type=_SnapshotBody)
        self.state = decider.load(saved.state)
        self.sequence, self.chain = snapshot.sequence, saved.chain
        self.fact_count = self.saved_fact_count = saved.fact_count
        self.dedup = DedupWindow(saved.dedup)
        self.observed_counts = saved.observed_counts
        self.key_sequence = max(self.key_sequence, saved.key_sequence)
        for family, number in saved.reacted_counts.items():
            self._mark_reacted(family, number)
        self.recorded_reactions |= saved.recorded_reactions

    def _pass_over(self, cursor: ChainCursor, stored: StoredMessage) -> None:
        """Count a quarantined message, whose facts nothing reads."""
        cursor.pass_over(stored.chain)
        self.sequence = stored.sequence
        self.key_sequence = max(self.key_sequence, stored.sequence)
        self.fact_count = max(self.fact_count, stored.quarantined_through)

    def _fold_message(
        self, decider: Decider, cursor: ChainCursor, stored: StoredMessage, *, renumber: bool
    ) -> None:
        """``renumber``: the message before is quarantined, so this one's ids have the number."""
        if not cursor.accept(stored.body, stored.chain):
            raise Failed(
                "CHAIN_BROKEN",
                f"message {stored.sequence} does not continue the chain of {self.id}",
                hint=f"rookery journal quarantine {stored.sequence} --reason TEXT",
            )
        facts = decider.codec.decode(stored.body)
        if renumber and facts:
            self.fact_count = parse_fact_id(facts[0].id)[2] - 1
        state = self.state
        for fact in facts:
            state = decider.evolve(state, fact)
        self.apply_commit(state, stored.sequence, stored.chain, facts)

    def apply_commit(self, state: Any, sequence: int, linked: str, facts: Sequence[Fact]) -> None:
        """Replace the state by the one after these committed facts."""
        self.state, self.sequence, self.chain = state, sequence, linked
        self.key_sequence = max(self.key_sequence, sequence)
        self.fact_count += len(facts)
        counted: tuple[str, ...] = ()
        for fact in facts:
            if fact.cause != counted:  # The facts of one command have the same causes.
                counted = fact.cause
                self._count_causes(fact)

    def _count_causes(self, fact: Fact) -> None:
        for cause in fact.cause:
            if fact.cause_digest is not UNSET:
                self.dedup.add(cause, fact.cause_digest, fact.at_ms)
            elif source := parse_reaction_id(cause):
                self._mark_reacted(source[0], source[2])
                self.recorded_reactions[source[0]] = source[2]

    def finish(self, pending_commands: Iterable[PendingCommand]) -> None:
        """Mark commands as finished."""
        for pending in pending_commands:
            if pending.source is not None:
                family, through = pending.source.family, pending.source.through
                self.key_sequence = max(self.key_sequence, pending.source.sequence)
                self.observed_counts[family] = max(self.observed_counts.get(family, 0), through)
                self._mark_reacted(family, through)
            pending.finish()

    def pass_over(self, family: str, first: int, last: int, sequence: int) -> None:
        """Count facts that the decider passes over as handled, if all before them are."""
        if self.reacted_counts.get(family, 0) >= first - 1 and not any(
            pending.source is not None and pending.source.family == family
            for pending in self.reactions
        ):
            self._mark_reacted(family, last)
            self.key_sequence = max(self.key_sequence, sequence)

    def reset_reactions(self) -> None:
        """Forget reactions that left no fact: they may have been decided on an outdated state."""
        self.reacted_counts = dict(self.recorded_reactions)

    def consumed_counts(self, decider: Decider) -> dict[str, int]:
        """Per family, how many facts need not be delivered again."""
        observed = {family: self.observed_counts.get(family, 0) for family in decider.observes}
        return self.reacted_counts | observed

    def _mark_reacted(self, family: str, number: int) -> None:
        self.reacted_counts[family] = max(self.reacted_counts.get(family, 0), number)

    def snapshot(self, decider: Decider) -> EntitySnapshot | None:
        """The snapshot from which ``fold`` can start; ``None`` if the state cannot be encoded."""
        try:
            return self._encode(decider)
        except Exception:
            log.exception("state not encoded", extra={"family": decider.family, "key": self.id.key})
            return None

    def _encode(self, decider: Decider) -> EntitySnapshot:
        saved = _SnapshotBody(
            decider.dump(self.state), self.chain, self.fact_count, self.key_sequence,
            self.reacted_counts, list(self.dedup), self.observed_counts, self.recorded_reactions,
        )  # fmt: skip
        return EntitySnapshot(self.sequence, msgspec.msgpack.encode(saved))
