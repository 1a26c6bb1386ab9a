"""Deciding: what waits on an entity becomes drafts, commits, answers and refusals.

Pure but for what it collects; the actor hands the collection over once a wake. It owns the rules
all families share: repeats, reused ids, reactions in order, what a failing rule leads to. It owns
no entity and no thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.completions import Closing
from rookery.actors.kernel.context import Hub
from rookery.actors.kernel.decider import Concern, Effect, Look, Looking
from rookery.actors.kernel.entity import Entity, Work
from rookery.actors.kernel.history_restart import (
    ASKS,
    OTHER_VERSIONS,
    HistoryCheck,
    HistoryView,
    RestartHistory,
    Restarting,
)
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.unit_of_work import Draft
from rookery.bus.ports import Answer, Delivery
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = ["Decisions"]

log = logging.getLogger(__name__)

FAILURES_MAX = 3


class Decisions:
    """One an actor; used on its thread."""

    def __init__(
        self,
        concern: Concern,
        hub: Hub,
        mailbox: Mailbox,
        *,
        reload: Callable[[Entity], None],
        catch_up: Callable[[Entity], None],
    ) -> None:
        self._concern, self._hub, self._mailbox = concern, hub, mailbox
        self._looking = concern if isinstance(concern, Looking) else None
        self._restarting = concern if isinstance(concern, Restarting) else None
        self._reload, self._catch_up = reload, catch_up
        self._source = f"{concern.family}@{hub.node}"
        self._commits: list[Commit] = []
        self._closing = Closing()

    def flush(self) -> None:
        """Hand over what was decided: commits to make durable, and what needs none."""
        if self._commits or self._closing:
            commits, self._commits = self._commits, []
            closing, self._closing = self._closing, Closing()
            self._hub.commit(commits, closing)

    def take(self, entity: Entity, now_ms: int) -> None:
        """Decide what waits on the entity, as far as it goes into one message."""
        if entity.broken is not None:
            self._break_off(entity, entity.broken, now_ms)
            return
        draft = Draft(entity, self._concern, self._source)
        while entity.ready and not draft.full and entity.broken is None:
            work = entity.next()
            if self._looking is not None and self._looks(self._looking, entity, draft, work):
                break
            try:
                self._decide(entity, draft, work, now_ms)
            except CodedError as error:
                if draft.facts:
                    draft.refuse(work, error)
                else:
                    self.refuse(entity, work, error)
            except Exception as error:  # A rule that raises anything else is a bug of ours.
                self._start_over(entity, draft, work, error)
                return
        if draft.facts:
            self._commit(entity, draft)

    def _commit(self, entity: Entity, draft: Draft) -> None:
        entity.committing = True
        self.note(entity.id.key, draft.state)
        message_id = self._hub.next_message_id()
        self._commits.append(draft.commit(message_id, self._mailbox, perf_counter()))

    def note(self, key: str, state: Any | None) -> None:
        """Tell the concern of a state. What it counts is not worth an actor."""
        try:
            self._concern.note(key, state)
        except Exception:
            log.exception("a state was not noted", extra={"family": self._concern.family})

    # --- ends that need no commit ---------------------------------------------------------------

    def refuse(self, entity: Entity, work: Work, error: CodedError) -> None:
        """End a command without facts, on nothing but what is durable."""
        if work.delivery is None:
            log.info("a reaction was refused", extra={"code": error.code, "id": work.command.id})
        else:
            self._closing.refuse(work.delivery, error)
        self._end(entity, work, "refused")

    def refuse_delivery(self, delivery: Delivery, error: CodedError) -> None:
        """End what never became a command."""
        self._hub.observer.command("invalid", "refused", 0.0)
        self._closing.refuse(delivery, error)

    def disown(self, works: Sequence[Work]) -> None:
        """These are another node's to do. It gets what came through the inbox and what is to be
        reacted to by itself; who waits at the door is told to ask again."""
        for work in works:
            work.end()
            if work.delivery is not None and work.delivery.position is None:
                error = Refused("PARTITION_UNOWNED", f"{work.command.key} moved to another node")
                self._closing.refuse(work.delivery, error)

    # --- entities that cannot be folded ---------------------------------------------------------

    def _break_off(self, entity: Entity, error: CodedError, now_ms: int) -> None:
        """The entity's history cannot be folded. Reactions stay on the horizon's books, for a
        version that can, unless somebody is told who can do without."""
        while entity.ready:
            work = entity.next()
            match work.command.body:
                case HistoryCheck() if not work.looked:
                    work.looked = True
                    entity.put_back([work])
                    self._reload(entity)
                case HistoryCheck():
                    view = HistoryView(code=error.code, message=error.message)
                    self._closing.answers.append(Answer(work.command.reply_to, encode_json(view)))
                    self._end(entity, work, "unchanged")
                case RestartHistory() as restart if self._restarting is not None:
                    self._restart(self._restarting, entity, work, restart, now_ms)
                case _:
                    self._break_one(entity, work, error)

    def _break_one(self, entity: Entity, work: Work, error: CodedError) -> None:
        effects: Sequence[Effect] = ()
        if self._restarting is not None:
            effects = self._restarting.when_broken(entity.id.key, work.command, error)
        if effects:
            self._hub.go_on(entity.id.key, entity.sequence, effects)
        if work.delivery is None:
            if effects:
                work.end()
            return
        if self._restarting is not None and error.code not in OTHER_VERSIONS:
            hint = f"rookery sessions destroy {entity.id.key}"
            error = type(error)(error.code, error.message, hint=hint)
        self.refuse(entity, work, error)

    def _restart(
        self,
        restarting: Restarting,
        entity: Entity,
        work: Work,
        restart: RestartHistory,
        now_ms: int,
    ) -> None:
        """Begin the entity anew. What was to be decided is, when it has been read again."""
        assert entity.broken is not None
        fact = restarting.restarts(
            generation=restart.generation,
            code=entity.broken.code,
            message=entity.broken.message,
            after_sequence=entity.sequence,
        )
        draft = Draft(entity, self._concern, self._source)
        try:
            draft.add(work, [fact], now_ms, restart.causes(entity.id))
        except CodedError as error:
            self.refuse(entity, work, error)
        else:
            self._commit(entity, draft)

    def _end(self, entity: Entity, work: Work, outcome: str) -> None:
        elapsed_s = perf_counter() - work.received_s
        self._hub.observer.command(work.command.verb, outcome, elapsed_s)
        entity.end([work])

    # --- one command ----------------------------------------------------------------------------

    def _decide(self, entity: Entity, draft: Draft, work: Work, now_ms: int) -> None:
        if work.origin is not None and not self._due(entity, draft, work):
            return
        command = work.command
        known = draft.recall(command.id)
        if known is not None and work.digest != known:
            raise Refused(
                "IDEMPOTENCY_KEY_REUSED",
                f"message id {command.id} was used with another body",
                hint="send a changed request under a new id",
            )
        if type(command.body) in ASKS:
            facts: Sequence[Fact] = ()
        elif known is None:
            facts = self._concern.decide(draft.state, command, now_ms=now_ms)
        elif self._concern.wants_repeats:
            repeated = msgspec.structs.replace(command, repeated=True)
            facts = self._concern.decide(draft.state, repeated, now_ms=now_ms)
        else:
            facts = ()
        if facts:
            draft.add(work, facts, now_ms)
            return
        answers = draft.answers(command, draft.state)
        outcome = "unchanged" if known is None else "repeated"
        if draft.facts:
            draft.end(work, outcome, answers)
        else:
            self._closing.answers += answers
            self._closing.done(work.delivery)
            self._end(entity, work, outcome)

    def _looks(self, looking: Looking, entity: Entity, draft: Draft, work: Work) -> bool:
        """Whether the journal is read first. What is drafted by then is made durable before."""
        if work.looked or work.origin is not None:
            return False
        look = looking.looks_first(draft.state, work.command)
        if look is None:
            return False
        entity.put_back([work])
        if not draft.facts:
            work.looked = entity.looking = entity.behind = True
            entity.react_again()
            (self._reload if look is Look.ALL else self._catch_up)(entity)
        return True

    def _due(self, entity: Entity, draft: Draft, work: Work) -> bool:
        """Whether a reaction is the next of its family: older ones are done, newer ones wait until
        the journal has brought those between."""
        assert work.origin is not None
        family, number, _ = work.origin
        observes = family in self._concern.observes
        known = draft.observed(family) if observes else draft.handled(family)
        if number > known + 1 and not work.fetched:
            entity.put_back([work])
            self._catch_up(entity)
        elif number <= known:
            work.end()
        elif not observes or self._observe(entity, draft, work):
            return True
        return False

    def _observe(self, entity: Entity, draft: Draft, work: Work) -> bool:
        """Fold in what another family decided; whether it is to be reacted to as well."""
        assert work.origin is not None
        family, number, _ = work.origin
        try:
            draft.observe(work.command.body)
        except Exception as error:  # As with an entity's own history.
            log.exception("an entity cannot be folded", extra={"family": entity.id.family})
            told = error if isinstance(error, CodedError) else None
            text = f"{entity.id} cannot be folded: {error!r}"
            entity.broken = told or Failed("NODE_FAILED", text)
            entity.put_back([work])
            return False
        if family in self._concern.reacts_to and number > draft.handled(family):
            return True
        if draft.facts:
            draft.end(work, "observed", ())
        else:
            entity.end([work])
        return False

    def _start_over(self, entity: Entity, draft: Draft, work: Work, error: Exception) -> None:
        """Nothing of the draft was told to anybody: forget it and the state, and read again."""
        work.failures += 1
        name = self._concern.family
        log.exception(
            "a command made its actor fail", extra={"family": name, "id": work.command.id}
        )
        again = list(draft.works)
        if work.failures < FAILURES_MAX:
            again.append(work)
        else:
            self.set_aside(work, error)
            entity.end([work])
        entity.put_back(again)
        self._hub.observer.restarted(name)
        self._reload(entity)

    def set_aside(self, work: Work, error: Exception) -> None:
        """Quarantine a command."""
        self._hub.observer.quarantined(work.command.verb)
        self._hub.quarantine(work, error)
