"""``UnitOfWork``: facts, effects and completions of the commands decided for one commit.

The facts of many commands become one journal message, up to a size limit. Replies wait for the ack.
A unit of work that fails is discarded as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from rookery.actors.histories import HISTORY_COMMANDS, HistoryView
from rookery.actors.kernel.decider import Decider, Effect, FoldedFacts
from rookery.actors.kernel.entities.entity import Entity, PendingCommand, ReactionSource
from rookery.actors.kernel.entities.mailbox import Mailbox
from rookery.actors.kernel.executors.asks import Reply, error_reply, is_local, reply_of
from rookery.bus.ports import AppendOutcome, AppendRequest, Delivery, InboxPosition
from rookery.schemas.codec import encode_facts, fact_name
from rookery.schemas.digest import chain
from rookery.schemas.envelope import Command, Fact, FactClasses, fill_envelope
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.event_index import fact_classes
from rookery.schemas.ids import fact_id

__all__ = ["UNIT_BYTES_MAX", "Commit", "CommitResults", "Completions", "UnitOfWork"]

UNIT_BYTES_MAX = 640 << 10
"""Payload plus headers above the server's limit would close the connection; this is well below."""
UNIT_COMMANDS_MAX = 1_000
HOLD_TURNS = 16
"""Turns of a busy loop from the start of a run to its first step, and some more."""


@dataclass(slots=True)
class Completions:
    """How any number of commands ended: replies, acknowledgements, dead letters. Those that depend
    on a commit wait for its ack."""

    replies: list[Reply] = field(default_factory=list)
    positions: list[InboxPosition] = field(default_factory=list)
    dead_letters: list[tuple[Delivery, CodedError]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.replies or self.positions or self.dead_letters)

    def merge(self, other: Completions) -> None:
        """Add another's entries to this one."""
        self.replies += other.replies
        self.positions += other.positions
        self.dead_letters += other.dead_letters

    def only_unowned(self) -> Completions:
        """Keep only the PARTITION_UNOWNED replies: they are valid whichever node owns the
        partition."""
        return Completions(
            [answer for answer in self.replies if answer.code == "PARTITION_UNOWNED"]
        )

    def ack(self, delivery: Delivery | None) -> None:
        """Acknowledge a command, so that the inbox does not deliver it again."""
        if delivery is not None and delivery.position is not None:
            self.positions.append(delivery.position)

    def refuse_by(self, decider: Decider, delivery: Delivery, error: CodedError) -> None:
        """Refuse a delivery for an actor with this decider."""
        if delivery.verb in decider.signed_verbs:
            decider.on_refused(delivery, error)
            self.ack(delivery)
        else:
            self.refuse(delivery, error)

    def refuse(self, delivery: Delivery, error: CodedError) -> None:
        """Reply with the error; a command without a waiting client becomes a dead letter."""
        if delivery.reply_to:
            self.replies.append(error_reply(delivery.reply_to, error))
            self.ack(delivery)
        elif delivery.position is not None:
            self.dead_letters.append((delivery, error))


class Commit(AppendRequest, eq=False, kw_only=True):
    """An append, with everything that follows once it is durable."""

    mailbox: Mailbox
    entity_record: Entity
    facts: list[Fact]
    commands: list[PendingCommand]
    state: Any
    """The entity's state after the facts."""
    effects: list[Effect]
    completions: Completions
    decided_s: float


class CommitResults(list[AppendOutcome]):
    """The results of an actor's commits, posted to its mailbox."""


class UnitOfWork:
    """Collects command after command and becomes a ``Commit``."""

    __slots__ = (
        "_classes",
        "_decider",
        "_early_replies",
        "_effects",
        "_fenced",
        "_ids",
        "_key_sequence",
        "_parts",
        "_reacted",
        "_size",
        "_source",
        "_timer",
        "commands",
        "completions",
        "entity",
        "facts",
        "hold_s",
        "state",
    )  # fmt: skip

    def __init__(self, entity: Entity, decider: Decider, source: str, classes: FactClasses) -> None:
        """``classes``: of the realm's facts."""
        self.entity, self._decider, self._source = entity, decider, source
        self._classes = classes
        self.state: Any = entity.state
        self.facts: list[Fact] = []
        self.commands: list[PendingCommand] = []
        """All commands decided since the first fact; they are decided again if the commit fails."""
        self.completions = Completions()
        """The completions of these commands, published once the facts are durable."""
        self.hold_s = inf
        """How long the facts may wait for the entity's next ones."""
        self._timer: asyncio.Handle | None = None
        """Ends that time."""
        self._early_replies: list[Reply] = []
        self._effects: list[Effect] = []
        self._fenced = False
        self._key_sequence = 0
        self._reacted: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 2

    @property
    def is_full(self) -> bool:
        """Whether the next command belongs into another message."""
        commands = self.commands
        if self._size >= UNIT_BYTES_MAX // 2 or len(commands) >= UNIT_COMMANDS_MAX:
            return True
        return bool(commands) and commands[-1].commit_alone

    def begin_hold(self, commit: Callable[[], None]) -> None:
        """Call ``commit`` when the facts have waited long enough. On a busy loop what they wait for
        has its turn late, and a message more would keep it busier."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.hold_s, self._end_hold, commit, HOLD_TURNS)

    def _end_hold(self, commit: Callable[[], None], turns: int) -> None:
        if turns:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_soon(self._end_hold, commit, turns - 1)
        else:
            commit()

    def duplicate_digest(self, command_id: str) -> str | None:
        """The digest of a command that was decided in this unit or before; ``None`` if it is
        unknown."""
        found = self._ids.get(command_id)
        return found if found is not None else self.entity.dedup.digest_of(command_id)

    def reacted_count(self, family: str) -> int:
        """How many facts of ``family`` have been reacted to, in this unit or before."""
        return max(self._reacted.get(family, 0), self.entity.reacted_counts.get(family, 0))

    def observed_count(self, family: str) -> int:
        """How many facts of ``family`` are folded into the state."""
        return max(self._reacted.get(family, 0), self.entity.observed_counts.get(family, 0))

    def observe(self, fact: Fact) -> None:
        """Fold a fact of an observed family; also into the entity's state if this unit has no
        facts."""
        self.state = self._decider.observe(self.state, fact)
        if not self.facts:
            self.entity.state = self.state

    def add(
        self,
        pending: PendingCommand,
        facts: Sequence[Fact],
        now_ms: int,
        causes: tuple[str, ...] = (),
    ) -> None:
        """Add a command and its facts. All rules are called before anything is changed, so an
        exception leaves the unit as it was."""
        decider, command = self._decider, pending.command
        state = self.state
        effects: list[Effect] = []
        self._fill_envelopes(facts, pending, now_ms, (command.id, *causes))
        if isinstance(facts, FoldedFacts):
            state = facts.state
        else:
            for fact in facts:
                state = decider.evolve(state, fact)
        for fact in facts:
            if type(fact) in decider.effect_types:
                effects += decider.effects(state, fact)
        part = _encode(facts)
        must_fence, replies = decider.must_be_fenced(facts), self.replies(command, state, facts)
        is_inside = pending.source is not None or is_local(command.reply_to)
        hold_s = decider.hold_s(state, facts) if is_inside else 0.0
        self.state = state
        self.facts += facts
        self._effects += effects
        self._fenced = self._fenced or must_fence
        self.hold_s = min(self.hold_s, hold_s)
        if hold_s:
            self._early_replies += replies
            replies = []
        self._ids[command.id] = pending.digest
        self._parts.append(part)
        self._size += len(part) + 1
        self.end(pending, "committed", replies)

    def _fill_envelopes(
        self, facts: Sequence[Fact], pending: PendingCommand, now_ms: int, cause: tuple[str, ...]
    ) -> None:
        """What only the kernel knows of new facts."""
        (family, key), command = self.entity.id, pending.command
        of_session = self._decider.classes(self.state, command, facts)
        at_least = self._classes.raised_by(of_session)
        for number, fact in enumerate(facts, self.entity.fact_count + len(self.facts) + 1):
            classes = fact_classes(fact, at_least)
            fill_envelope(
                fact,
                id=fact_id(family, key, number),
                at_ms=now_ms,
                session=key,
                cause=cause,
                cause_digest=pending.digest,
                source=self._source,
                traceparent=command.traceparent,
                by=command.by,
                privacy=classes.privacy,
                retention=classes.retention,
            )

    @property
    def follows(self) -> int:
        """The sequence of a message from which a crash of this node is recovered: of the newest
        fact that the facts react to, or of the entity's last one."""
        return max(self._key_sequence, self.entity.sequence)

    def pop_effects(self) -> Sequence[Effect]:
        """Remove and return the effects so far: they start before the commit."""
        effects, self._effects = self._effects, []
        return effects

    def pop_early_replies(self) -> Sequence[Reply]:
        """Remove and return the replies to executors whose facts may wait."""
        replies, self._early_replies = self._early_replies, []
        return replies

    def replies(self, command: Command[Any], state: Any, facts: Sequence[Fact] = ()) -> list[Reply]:
        """The replies to send once the facts are durable; none if an effect replies later. A reply
        to a command without facts says which facts its view contains."""
        if type(command.body) in HISTORY_COMMANDS:
            return [reply_of(command.reply_to, HistoryView())]
        reply = self._decider.reply(state, command, facts) if command.reply_to else None
        if isinstance(reply, CodedError):
            return [error_reply(command.reply_to, reply)]
        if reply is None:
            return []
        count = None if facts else self.entity.fact_count + len(self.facts)
        return [reply_of(command.reply_to, reply, count)]

    def end(self, pending: PendingCommand, outcome: str, replies: Sequence[Reply]) -> None:
        """Add a command that left no facts; it ends once the facts before it are durable."""
        self._add_command(pending, outcome)
        self.completions.replies += replies
        self.completions.ack(pending.delivery)
        if self.completions:
            self.hold_s = 0.0

    def refuse(self, pending: PendingCommand, error: CodedError) -> None:
        """Add a refused command; it ends once the facts it was decided on are durable."""
        self._add_command(pending, "refused")
        if pending.delivery is not None:
            self.completions.refuse_by(self._decider, pending.delivery, error)
            self.hold_s = 0.0

    def _add_command(self, pending: PendingCommand, outcome: str) -> None:
        pending.outcome = outcome
        self.commands.append(pending)
        if pending.source is not None:
            self._mark_reacted(pending.source)

    def _mark_reacted(self, origin: ReactionSource) -> None:
        self._reacted[origin.family] = origin.through
        self._key_sequence = max(self._key_sequence, origin.sequence)

    def commit(self, message_id: str, mailbox: Mailbox, decided_s: float) -> Commit:
        """The commit of all facts, with what follows from it."""
        entity = self.entity
        if self._timer is not None:
            self._timer.cancel()
        self.completions.replies += self.pop_early_replies()
        body = b"[" + b",".join(self._parts) + b"]"
        return Commit(
            entity=entity.id,
            expected=entity.sequence,
            message_id=message_id,
            body=body,
            chain=chain(entity.chain, body),
            kinds=",".join(dict.fromkeys(map(fact_name, map(type, self.facts)))),
            fence=max(self._key_sequence, entity.key_sequence) if self._fenced else None,
            mailbox=mailbox,
            entity_record=entity,
            facts=self.facts,
            commands=self.commands,
            state=self.state,
            effects=self._effects,
            completions=self.completions,
            decided_s=decided_s,
        )


def _encode(facts: Sequence[Fact]) -> bytes:
    part = encode_facts(facts)[1:-1]
    if len(part) > UNIT_BYTES_MAX:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the facts of one command have {len(part)} bytes, the limit is {UNIT_BYTES_MAX}",
        )
    return part
