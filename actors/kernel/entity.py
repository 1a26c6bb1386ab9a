"""One entity as its actor keeps it: committed state, the draft under way, and who waits.

It belongs to one actor's thread. It owns folding (history to state) and nothing that decides.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.kernel.decider import Concern
from rookery.actors.kernel.dedup import CommandMemory
from rookery.actors.kernel.history_restart import chain_end, last_number, last_restart
from rookery.actors.kernel.mailbox import Room
from rookery.actors.kernel.watermark import Ticket
from rookery.bus.ports import Delivery, Snapshot, Stored
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.ids import parse_reaction_id

__all__ = ["Entity", "Origin", "Work", "chain_of"]

log = logging.getLogger(__name__)


class Origin(NamedTuple):
    """The fact a reaction is to, among those of its family under the same key."""

    family: str
    number: int
    sequence: int


class Work(msgspec.Struct, eq=False):
    """A command waiting to be decided, with what is needed to answer it."""

    command: Command[Any]
    digest: str
    """First 16 hex digits of the body's digest; empty for commands made inside."""
    received_s: float
    delivery: Delivery | None = None
    """The door's delivery; ``None`` for reactions and the kernel's own commands."""
    origin: Origin | None = None
    """Set if this is a reaction."""
    ticket: Ticket | None = None
    """Closed when a reaction has come to its end."""
    room: Room | None = None
    """Left when a request has come to its end."""
    outcome: str = ""
    """``committed``, ``unchanged``, ``repeated`` or ``refused``, as last decided."""
    alone: bool = False
    """Its message was rejected together with others: it has the next one to itself."""
    looked: bool = False
    """What other families did was read before it is decided."""
    fetched: bool = False
    """This reaction came from the journal: of those before it, nothing more will come."""
    conflicts: int = 0
    failures: int = 0

    def end(self) -> None:
        """Nothing more will come of it."""
        if self.ticket is not None:
            self.ticket.close()
        if self.room is not None and self.delivery is not None:
            self.room.leave(len(self.delivery.body))
            self.room = None


class _Saved(msgspec.Struct, array_like=True):
    """A snapshot's body."""

    state: bytes
    chain: str
    count: int
    seen: int
    handled: dict[str, int]
    memory: list[tuple[str, str, int]]
    observed: dict[str, int] = {}
    left: dict[str, int] = {}


def chain_of(snapshot: Snapshot) -> str:
    """The digest of the last message that the snapshot knows; empty if it makes no sense."""
    try:
        return msgspec.msgpack.decode(snapshot.body, type=_Saved).chain
    except msgspec.MsgspecError:
        return ""


class Entity:
    """An entity's record in its actor."""

    __slots__ = (
        "behind", "broken", "called_for", "chain", "committing", "count", "handled", "id", "left",
        "loads", "looking", "memory", "observed", "reactions", "read_anew", "read_for", "resuming",
        "saved_count", "seen", "sequence", "state", "touched_ms", "waiting",
    )  # fmt: skip

    def __init__(self, entity_id: EntityId, concern: Concern) -> None:
        self.id = entity_id
        self.loads = 0
        """Reads under way: nothing may be decided before they are back."""
        self.committing = False
        """An append is under way: decisions wait and are then taken together."""
        self.broken: CodedError | None = None
        """Why its history cannot be folded; every command is answered with it."""
        self.looking = False
        """A command is to be decided on what others did: on as much of that as can be read."""
        self.behind = False
        """What other families did is to be fetched, as soon as its own history is there."""
        self.read_anew = False
        """Its history was read, and what that calls for has not been begun yet."""
        self.called_for: frozenset[object] = frozenset()
        """What that is, by kind and key. What is decided from then on has its effects by itself."""
        self.reactions: deque[Work] = deque()
        self.waiting: deque[Work] = deque()
        """Commands, decided when no reaction is left: what stands comes before what is asked."""
        self.resuming: list[tuple[int, list[Fact], Ticket]] = []
        """Facts, with their sequence, whose effects start again once the state is there."""
        self.read_for = 0
        """It was read again to know this fact; once, since what is not there will not come."""
        self.touched_ms = 0
        self.seen = 0
        """What stands under the key has come here up to this sequence, as far as is known."""
        self.handled: dict[str, int] = {}
        """How many facts of another family, under the same key, have been reacted to."""
        self.left: dict[str, int] = {}
        """The same up to the last one to which the reaction stands on record."""
        self.state: Any = None
        self.fold(concern, None, ())

    def _reset(self, concern: Concern) -> None:
        """Forget what the journal says, to read it again; what was reacted to stays true."""
        self.sequence = 0
        self.chain = ZERO_CHAIN
        self.count = 0
        self.saved_count = 0
        self.memory = CommandMemory()
        self.observed: dict[str, int] = {}
        """How many facts of another family, under the same key, are folded into the state."""
        self.state = concern.initial(self.id.key)

    @property
    def ready(self) -> bool:
        """Whether a decision may be taken now."""
        return bool(self.reactions or self.waiting) and not self.loads and not self.committing

    @property
    def idle(self) -> bool:
        """Whether nothing is under way or waiting."""
        return not (
            self.reactions or self.waiting or self.loads or self.committing or self.resuming
        )

    def next(self) -> Work:
        """Take out what is to be decided next."""
        return (self.reactions or self.waiting).popleft()

    def put_back(self, works: Sequence[Work]) -> None:
        """These were taken out, in this order, and come first again."""
        for work in reversed(works):
            (self.waiting if work.origin is None else self.reactions).appendleft(work)

    def let_go(self) -> list[Work]:
        """Everything that waits, for somebody else to do."""
        works = [*self.reactions, *self.waiting]
        self.reactions.clear()
        self.waiting.clear()
        for _, _, ticket in self.resuming:
            ticket.close()
        self.resuming.clear()
        return works

    def fold(self, concern: Concern, snapshot: Snapshot | None, tail: Sequence[Stored]) -> None:
        """Become what the journal says: a snapshot, if any, and the messages after it."""
        self.broken = self._folded(concern, snapshot, (), tail)
        if self.broken is None or snapshot is not None:
            return
        anew = last_restart(tail)
        if anew >= 0:
            self.broken = self._folded(concern, None, tail[:anew], tail[anew:])
        if self.broken is not None:
            self._folded(concern, None, tail, ())

    def _folded(
        self,
        concern: Concern,
        snapshot: Snapshot | None,
        left: Sequence[Stored],
        tail: Sequence[Stored],
    ) -> CodedError | None:
        """Why the messages of ``tail`` cannot be folded, if so. What is ``left`` before them is
        not folded; they continue it all the same."""
        try:
            self._reset(concern)
            if snapshot is not None:
                self._restore(concern, snapshot)
            elif left:
                self.sequence, self.chain = left[-1].sequence, chain_end(left)
                self.count = last_number(self.id, left)
            for stored in tail:
                self._fold_message(concern, stored)
        except CodedError as error:
            return error
        except Exception as error:  # A fold is total; if it is not, nobody else may suffer.
            log.exception("an entity cannot be folded", extra={"family": self.id.family})
            return Failed("NODE_FAILED", f"{self.id} cannot be folded: {error!r}")
        return None

    def _restore(self, concern: Concern, snapshot: Snapshot) -> None:
        saved = msgspec.msgpack.decode(snapshot.body, type=_Saved)
        self.state = concern.load(saved.state)
        self.sequence, self.chain = snapshot.sequence, saved.chain
        self.count = self.saved_count = saved.count
        self.memory = CommandMemory(saved.memory)
        self.observed = saved.observed
        self.seen = max(self.seen, saved.seen)
        for family, number in saved.handled.items():
            self._reacted(family, number)
        self.left |= saved.left

    def _fold_message(self, concern: Concern, stored: Stored) -> None:
        linked = chain(self.chain, stored.body)
        if linked != stored.chain:
            raise Failed(
                "CHAIN_BROKEN",
                f"message {stored.sequence} does not continue the chain of {self.id}",
                hint="rookery journal verify",
            )
        facts = concern.codec.decode(stored.body)
        state = self.state
        for fact in facts:
            state = concern.evolve(state, fact)
        self.commit(state, stored.sequence, linked, facts)

    def commit(self, state: Any, sequence: int, linked: str, facts: Sequence[Fact]) -> None:
        """These facts are durable: the draft they made is the state."""
        self.state, self.sequence, self.chain = state, sequence, linked
        self.seen = max(self.seen, sequence)
        self.count += len(facts)
        for fact in facts:
            for cause in fact.cause:
                if fact.cause_digest is not UNSET:
                    self.memory.remember(cause, fact.cause_digest, fact.at_ms)
                elif source := parse_reaction_id(cause):
                    self._reacted(source[0], source[2])
                    self.left[source[0]] = source[2]

    def end(self, works: Iterable[Work]) -> None:
        """These are decided for good."""
        for work in works:
            if work.origin is not None:
                family, number, sequence = work.origin
                self.seen = max(self.seen, sequence)
                self.observed[family] = max(self.observed.get(family, 0), number)
                self._reacted(family, number)
            work.end()

    def react_again(self) -> None:
        """What led to nothing may have been decided on a state that was out of date."""
        self.handled = dict(self.left)

    def known(self, concern: Concern) -> dict[str, int]:
        """How many facts of every other family need not come here again."""
        observed = {family: self.observed.get(family, 0) for family in concern.observes}
        return self.handled | observed

    def _reacted(self, family: str, number: int) -> None:
        self.handled[family] = max(self.handled.get(family, 0), number)

    def snapshot(self, concern: Concern) -> Snapshot:
        """What ``fold`` needs to start from here."""
        saved = _Saved(
            concern.dump(self.state), self.chain, self.count, self.seen,
            self.handled, list(self.memory), self.observed, self.left,
        )  # fmt: skip
        self.saved_count = self.count
        return Snapshot(self.sequence, msgspec.msgpack.encode(saved))
