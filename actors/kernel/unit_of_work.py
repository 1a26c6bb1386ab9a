"""A decision under way: what the commands waiting on one entity come to, taken together.

Facts of many commands become one journal message, up to a size. Nothing here is told to anybody
before the committer has an ack; a draft that cannot be finished is thrown away whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.completions import Closing
from rookery.actors.kernel.decider import Concern, Effect
from rookery.actors.kernel.delivery_decoder import error_answer
from rookery.actors.kernel.entity import Entity, Origin, Work
from rookery.actors.kernel.history_restart import ASKS, HistoryView
from rookery.actors.kernel.mailbox import Mailbox
from rookery.bus.ports import Answer
from rookery.schemas.codec import encode_facts, encode_json
from rookery.schemas.digest import chain
from rookery.schemas.envelope import Command, Fact, stamp
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.ids import fact_id

__all__ = ["DRAFT_BYTES_MAX", "Draft"]

DRAFT_BYTES_MAX = 512 << 10
"""Payload and headers above the server's limit would close the connection; stay well below."""
DRAFT_COMMANDS_MAX = 1_000


class Draft:
    """Grows by one command after the other, then becomes a ``Commit``."""

    __slots__ = (
        "_concern", "_effects", "_entity", "_fenced", "_handled", "_ids", "_parts", "_seen",
        "_size", "_source", "closing", "facts", "state", "works",
    )  # fmt: skip

    def __init__(self, entity: Entity, concern: Concern, source: str) -> None:
        self._entity, self._concern, self._source = entity, concern, source
        self.state: Any = entity.state
        self.facts: list[Fact] = []
        self.works: list[Work] = []
        """Everything decided since the first fact: decided again if the commit fails."""
        self.closing = Closing()
        """How these end, once the facts are durable."""
        self._effects: list[Effect] = []
        self._fenced = False
        self._seen = 0
        self._handled: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._size = 2

    @property
    def full(self) -> bool:
        """Whether the next command had better wait for the next message."""
        works = self.works
        if self._size >= DRAFT_BYTES_MAX // 2 or len(works) >= DRAFT_COMMANDS_MAX:
            return True
        return bool(works) and works[-1].alone

    def recall(self, command_id: str) -> str | None:
        """The digest of a command this entity has worked off, here or before."""
        found = self._ids.get(command_id)
        return found if found is not None else self._entity.memory.recall(command_id)

    def handled(self, family: str) -> int:
        """How many facts of ``family`` have been reacted to, here or before."""
        return max(self._handled.get(family, 0), self._entity.handled.get(family, 0))

    def observed(self, family: str) -> int:
        """How many facts of ``family`` the state knows of."""
        return max(self._handled.get(family, 0), self._entity.observed.get(family, 0))

    def observe(self, fact: Fact) -> None:
        """Fold in what another family decided; with nothing to commit before it, at once."""
        self.state = self._concern.observe(self.state, fact)
        if not self.facts:
            self._entity.state = self.state

    def add(
        self, work: Work, facts: Sequence[Fact], now_ms: int, causes: tuple[str, ...] = ()
    ) -> None:
        """Take in a command and the facts it causes. Raises without a trace if that cannot be:
        everything the rules say about the facts is asked before they are taken."""
        concern, command, entity = self._concern, work.command, self._entity
        state = self.state
        effects: list[Effect] = []
        for number, fact in enumerate(facts, entity.count + len(self.facts) + 1):
            stamp(
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
        part = _encoded(facts)
        fenced, answers = concern.fenced(facts), self.answers(command, state, facts)
        self.state = state
        self.facts += facts
        self._effects += effects
        self._fenced = self._fenced or fenced
        self._ids[command.id] = work.digest
        self._parts.append(part)
        self._size += len(part) + 1
        self.end(work, "committed", answers)

    def answers(
        self, command: Command[Any], state: Any, facts: Sequence[Fact] = ()
    ) -> list[Answer]:
        """What to say to whoever asked, if it is to be said now."""
        if type(command.body) in ASKS:
            return [Answer(command.reply_to, encode_json(HistoryView()))]
        shown = self._concern.answer(state, command, facts) if command.reply_to else None
        if isinstance(shown, CodedError):
            return [error_answer(command.reply_to, shown)]
        return [] if shown is None else [Answer(command.reply_to, encode_json(shown))]

    def end(self, work: Work, outcome: str, answers: Sequence[Answer]) -> None:
        """Note a command's end; it counts once the facts before it do."""
        self._take(work, outcome)
        self.closing.answers += answers
        self.closing.done(work.delivery)

    def refuse(self, work: Work, error: CodedError) -> None:
        """Note a refusal; it counts once the facts it was decided on do."""
        self._take(work, "refused")
        if work.delivery is not None:
            self.closing.refuse(work.delivery, error)

    def _take(self, work: Work, outcome: str) -> None:
        work.outcome = outcome
        self.works.append(work)
        if work.origin is not None:
            self._note(work.origin)

    def _note(self, origin: Origin) -> None:
        self._handled[origin.family] = origin.number
        self._seen = max(self._seen, origin.sequence)

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
            fence=max(self._seen, entity.seen) if self._fenced else None,
            mailbox=mailbox,
            home=entity,
            facts=self.facts,
            works=self.works,
            state=self.state,
            effects=self._effects,
            closing=self.closing,
            decided_s=decided_s,
        )


def _encoded(facts: Sequence[Fact]) -> bytes:
    part = encode_facts(facts)[1:-1]
    if len(part) > DRAFT_BYTES_MAX:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the facts of one command have {len(part)} bytes, the limit is {DRAFT_BYTES_MAX}",
        )
    return part
