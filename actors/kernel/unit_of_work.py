"""A decision under way: what the commands waiting on one entity come to, taken together.

Facts of many commands become one journal message, up to a size. Nothing here is told to anybody
before the committer has an ack; a draft that cannot be finished is thrown away whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.completions import Completions
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.delivery_decoder import error_reply
from rookery.actors.kernel.entity import Entity, PendingCommand, ReactionSource
from rookery.actors.kernel.history_restart import HISTORY_COMMANDS, HistoryView
from rookery.actors.kernel.mailbox import Mailbox
from rookery.bus.ports import ReplyMessage
from rookery.schemas.codec import encode_facts, encode_json
from rookery.schemas.digest import chain
from rookery.schemas.envelope import Command, Fact, fill_envelope
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.ids import fact_id

__all__ = ["UNIT_BYTES_MAX", "UnitOfWork"]

UNIT_BYTES_MAX = 512 << 10
"""Payload and headers above the server's limit would close the connection; stay well below."""
UNIT_COMMANDS_MAX = 1_000


class UnitOfWork:
    """Grows by one command after the other, then becomes a ``Commit``."""

    __slots__ = (
        "_decider",
        "_effects",
        "_entity",
        "_fenced",
        "_ids",
        "_key_sequence",
        "_parts",
        "_reacted",
        "_size",
        "_source",
        "commands",
        "completions",
        "facts",
        "state",
    )  # fmt: skip

    def __init__(self, entity: Entity, concern: Decider, source: str) -> None:
        self._entity, self._decider, self._source = entity, concern, source
        self.state: Any = entity.state
        self.facts: list[Fact] = []
        self.commands: list[PendingCommand] = []
        """Everything decided since the first fact: decided again if the commit fails."""
        self.completions = Completions()
        """How these end, once the facts are durable."""
        self._effects: list[Effect] = []
        self._fenced = False
        self._key_sequence = 0
        self._reacted: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 2

    @property
    def is_full(self) -> bool:
        """Whether the next command had better wait for the next message."""
        works = self.commands
        if self._size >= UNIT_BYTES_MAX // 2 or len(works) >= UNIT_COMMANDS_MAX:
            return True
        return bool(works) and works[-1].commit_alone

    def duplicate_digest(self, command_id: str) -> str | None:
        """The digest of a command this entity has worked off, here or before."""
        found = self._ids.get(command_id)
        return found if found is not None else self._entity.dedup.digest_of(command_id)

    def reacted_count(self, family: str) -> int:
        """How many facts of ``family`` have been reacted to, here or before."""
        return max(self._reacted.get(family, 0), self._entity.reacted_counts.get(family, 0))

    def observed_count(self, family: str) -> int:
        """How many facts of ``family`` the state knows of."""
        return max(self._reacted.get(family, 0), self._entity.observed_counts.get(family, 0))

    def observe(self, fact: Fact) -> None:
        """Fold in what another family decided; with nothing to commit before it, at once."""
        self.state = self._decider.observe(self.state, fact)
        if not self.facts:
            self._entity.state = self.state

    def add(
        self, work: PendingCommand, facts: Sequence[Fact], now_ms: int, causes: tuple[str, ...] = ()
    ) -> None:
        """Take in a command and the facts it causes. Raises without a trace if that cannot be:
        everything the rules say about the facts is asked before they are taken."""
        concern, command, entity = self._decider, work.command, self._entity
        state = self.state
        effects: list[Effect] = []
        for number, fact in enumerate(facts, entity.fact_count + len(self.facts) + 1):
            fill_envelope(
                fact,
                id=fact_id(entity.id.family, entity.id.key, number),
                at_ms=now_ms,
                session=entity.id.key,
                cause=(command.id, *causes),
                cause_digest=work.digest,
                source=self._source,
                traceparent=command.traceparent,
            )
            state = concern.evolve(state, fact)
            if concern.has_effects:
                effects += concern.effects(state, fact)
        part = _encode(facts)
        fenced, answers = concern.must_be_fenced(facts), self.replies(command, state, facts)
        self.state = state
        self.facts += facts
        self._effects += effects
        self._fenced = self._fenced or fenced
        self._ids[command.id] = work.digest
        self._parts.append(part)
        self._size += len(part) + 1
        self.end(work, "committed", answers)

    def replies(
        self, command: Command[Any], state: Any, facts: Sequence[Fact] = ()
    ) -> list[ReplyMessage]:
        """What to say to whoever asked, if it is to be said now."""
        if type(command.body) in HISTORY_COMMANDS:
            return [ReplyMessage(command.reply_to, encode_json(HistoryView()))]
        shown = self._decider.reply(state, command, facts) if command.reply_to else None
        if isinstance(shown, CodedError):
            return [error_reply(command.reply_to, shown)]
        return [] if shown is None else [ReplyMessage(command.reply_to, encode_json(shown))]

    def end(self, work: PendingCommand, outcome: str, answers: Sequence[ReplyMessage]) -> None:
        """Note a command's end; it counts once the facts before it do."""
        self._add_command(work, outcome)
        self.completions.replies += answers
        self.completions.ack(work.delivery)

    def refuse(self, work: PendingCommand, error: CodedError) -> None:
        """Note a refusal; it counts once the facts it was decided on do."""
        self._add_command(work, "refused")
        if work.delivery is not None:
            self.completions.refuse(work.delivery, error)

    def _add_command(self, work: PendingCommand, outcome: str) -> None:
        work.outcome = outcome
        self.commands.append(work)
        if work.source is not None:
            self._mark_reacted(work.source)

    def _mark_reacted(self, origin: ReactionSource) -> None:
        self._reacted[origin.family] = origin.number
        self._key_sequence = max(self._key_sequence, origin.sequence)

    def commit(self, message_id: str, mailbox: Mailbox, decided_s: float) -> Commit:
        """The journal message, and what to do once it is durable."""
        entity = self._entity
        body = b"[" + b",".join(self._parts) + b"]"
        return Commit(
            entity=entity.id,
            expected=entity.sequence,
            message_id=message_id,
            body=body,
            chain=chain(entity.chain, body),
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
