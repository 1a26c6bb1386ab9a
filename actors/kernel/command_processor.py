"""``CommandProcessor``: decides an entity's pending commands and collects commits and replies.

It holds the rules that all families share: duplicates, reused ids, the order of reactions, failing
rules. The actor passes on what it collected once per wake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import msgspec

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.completions import Completions
from rookery.actors.kernel.context import ActorContext
from rookery.actors.kernel.decider import Decider, Effect, ReadsBeforeDeciding, ReadScope
from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.history_restart import (
    HISTORY_COMMANDS,
    OTHER_VERSIONS,
    HistoryCheck,
    HistoryView,
    Restartable,
    RestartHistory,
)
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.unit_of_work import UnitOfWork
from rookery.bus.ports import Delivery, ReplyMessage
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = ["CommandProcessor"]

log = logging.getLogger(__name__)

FAILURES_MAX = 3


class CommandProcessor:
    """One per actor, used on its thread."""

    def __init__(
        self,
        concern: Decider,
        hub: ActorContext,
        mailbox: Mailbox,
        *,
        reload: Callable[[Entity], None],
        catch_up: Callable[[Entity], None],
    ) -> None:
        self._decider, self._context, self._mailbox = concern, hub, mailbox
        self._reads_before = concern if isinstance(concern, ReadsBeforeDeciding) else None
        self._restartable = concern if isinstance(concern, Restartable) else None
        self._reload, self._catch_up = reload, catch_up
        self._source = f"{concern.family}@{hub.node}"
        self._commits: list[Commit] = []
        self._completions = Completions()

    def flush(self) -> None:
        """Pass on the collected commits and the completions that need no commit."""
        if self._commits or self._completions:
            commits, self._commits = self._commits, []
            closing, self._completions = self._completions, Completions()
            self._context.commit(commits, closing)

    def process(self, entity: Entity, now_ms: int) -> None:
        """Decide the entity's pending commands, as many as fit into one message."""
        if entity.load_error is not None:
            self._process_damaged(entity, entity.load_error, now_ms)
            return
        draft = UnitOfWork(entity, self._decider, self._source)
        while entity.is_ready and not draft.is_full and entity.load_error is None:
            work = entity.pop_next()
            if self._reads_before is not None and self._reads_first(
                self._reads_before, entity, draft, work
            ):
                break
            try:
                self._decide(entity, draft, work, now_ms)
            except CodedError as error:
                if draft.facts:
                    draft.refuse(work, error)
                else:
                    self.refuse(entity, work, error)
            except Exception as error:  # A rule may raise only CodedError; anything else is a bug.
                self._retry_from_journal(entity, draft, work, error)
                return
        if draft.facts:
            self._commit(entity, draft)

    def _commit(self, entity: Entity, draft: UnitOfWork) -> None:
        entity.committing = True
        self.report_state(entity.id.key, draft.state)
        message_id = self._context.next_message_id()
        self._commits.append(draft.commit(message_id, self._mailbox, perf_counter()))

    def report_state(self, key: str, state: Any | None) -> None:
        """Pass a state to the decider's ``on_state``. A failure there is logged and does not stop
        the actor."""
        try:
            self._decider.on_state(key, state)
        except Exception:
            log.exception("a state was not noted", extra={"family": self._decider.family})

    # --- ends that need no commit ---------------------------------------------------------------

    def refuse(self, entity: Entity, work: PendingCommand, error: CodedError) -> None:
        """End a command without facts. Nothing undecided may precede it in the unit of work."""
        if work.delivery is None:
            log.info("a reaction was refused", extra={"code": error.code, "id": work.command.id})
        else:
            self._completions.refuse(work.delivery, error)
        self._finish(entity, work, "refused")

    def refuse_undecoded(self, delivery: Delivery, error: CodedError) -> None:
        """Refuse a delivery that could not be decoded."""
        self._context.metrics.command("invalid", "refused", 0.0)
        self._completions.refuse(delivery, error)

    def release(self, works: Sequence[PendingCommand]) -> None:
        """Drop commands of keys that moved to another node. The inbox and the journal deliver inbox
        commands and reactions to the new owner; a client's request is answered with
        PARTITION_UNOWNED."""
        for work in works:
            work.finish()
            if work.delivery is not None and work.delivery.position is None:
                error = Refused("PARTITION_UNOWNED", f"{work.command.key} moved to another node")
                self._completions.refuse(work.delivery, error)

    # --- entities that cannot be folded ---------------------------------------------------------

    def _process_damaged(self, entity: Entity, error: CodedError, now_ms: int) -> None:
        """Answer the pending commands of an entity whose history cannot be folded. Reactions keep
        their holds for a version that can fold it, unless an effect reports the broken history."""
        while entity.is_ready:
            work = entity.pop_next()
            match work.command.body:
                case HistoryCheck() if not work.journal_read:
                    work.journal_read = True
                    entity.requeue([work])
                    self._reload(entity)
                case HistoryCheck():
                    view = HistoryView(code=error.code, message=error.message)
                    self._completions.replies.append(
                        ReplyMessage(work.command.reply_to, encode_json(view))
                    )
                    self._finish(entity, work, "unchanged")
                case RestartHistory() as restart if self._restartable is not None:
                    self._restart_history(self._restartable, entity, work, restart, now_ms)
                case _:
                    self._refuse_damaged(entity, work, error)

    def _refuse_damaged(self, entity: Entity, work: PendingCommand, error: CodedError) -> None:
        effects: Sequence[Effect] = ()
        if self._restartable is not None:
            effects = self._restartable.effects_when_damaged(entity.id.key, work.command, error)
        if effects:
            self._context.ensure_effects(entity.id.key, entity.sequence, effects)
        if work.delivery is None:
            if effects:
                work.finish()
            return
        if self._restartable is not None and error.code not in OTHER_VERSIONS:
            hint = f"rookery sessions destroy {entity.id.key}"
            error = type(error)(error.code, error.message, hint=hint)
        self.refuse(entity, work, error)

    def _restart_history(
        self,
        restarting: Restartable,
        entity: Entity,
        work: PendingCommand,
        restart: RestartHistory,
        now_ms: int,
    ) -> None:
        """Commit the restart fact. Pending commands are decided after the entity is loaded again."""
        assert entity.load_error is not None
        fact = restarting.restart_fact(
            generation=restart.generation,
            code=entity.load_error.code,
            message=entity.load_error.message,
            after_sequence=entity.sequence,
        )
        draft = UnitOfWork(entity, self._decider, self._source)
        try:
            draft.add(work, [fact], now_ms, restart.causes(entity.id))
        except CodedError as error:
            self.refuse(entity, work, error)
        else:
            self._commit(entity, draft)

    def _finish(self, entity: Entity, work: PendingCommand, outcome: str) -> None:
        elapsed_s = perf_counter() - work.received_s
        self._context.metrics.command(work.command.verb, outcome, elapsed_s)
        entity.finish([work])

    # --- one command ----------------------------------------------------------------------------

    def _decide(self, entity: Entity, draft: UnitOfWork, work: PendingCommand, now_ms: int) -> None:
        if work.source is not None and not self._is_next(entity, draft, work):
            return
        command = work.command
        known = draft.duplicate_digest(command.id)
        if known is not None and work.digest != known:
            raise Refused(
                "IDEMPOTENCY_KEY_REUSED",
                f"message id {command.id} was used with another body",
                hint="send a changed request under a new id",
            )
        if type(command.body) in HISTORY_COMMANDS:
            facts: Sequence[Fact] = ()
        elif known is None:
            facts = self._decider.decide(draft.state, command, now_ms=now_ms)
        elif self._decider.handles_duplicates:
            repeated = msgspec.structs.replace(command, is_duplicate=True)
            facts = self._decider.decide(draft.state, repeated, now_ms=now_ms)
        else:
            facts = ()
        if facts:
            draft.add(work, facts, now_ms)
            return
        answers = draft.replies(command, draft.state)
        outcome = "unchanged" if known is None else "repeated"
        if draft.facts:
            draft.end(work, outcome, answers)
        else:
            self._completions.replies += answers
            self._completions.ack(work.delivery)
            self._finish(entity, work, outcome)

    def _reads_first(
        self, looking: ReadsBeforeDeciding, entity: Entity, draft: UnitOfWork, work: PendingCommand
    ) -> bool:
        """Whether the journal must be read before this command. The unit of work is committed
        first."""
        if work.journal_read or work.source is not None:
            return False
        look = looking.read_scope(draft.state, work.command)
        if look is None:
            return False
        entity.requeue([work])
        if not draft.facts:
            work.journal_read = entity.skips_unreadable = entity.needs_catch_up = True
            entity.reset_reactions()
            (self._reload if look is ReadScope.ALL else self._catch_up)(entity)
        return True

    def _is_next(self, entity: Entity, draft: UnitOfWork, work: PendingCommand) -> bool:
        """Whether a reaction is next in its family's order. Older ones are finished; newer ones
        wait until the journal has delivered those in between."""
        assert work.source is not None
        family, number, _ = work.source
        observes = family in self._decider.observes
        known = draft.observed_count(family) if observes else draft.reacted_count(family)
        if number > known + 1 and not work.from_journal:
            entity.requeue([work])
            self._catch_up(entity)
        elif number <= known:
            work.finish()
        elif not observes or self._observe(entity, draft, work):
            return True
        return False

    def _observe(self, entity: Entity, draft: UnitOfWork, work: PendingCommand) -> bool:
        """Fold a fact of an observed family. True if the decider also reacts to it."""
        assert work.source is not None
        family, number, _ = work.source
        try:
            draft.observe(work.command.body)
        except Exception as error:  # Treated like a failure to fold the entity's own history.
            log.exception("an entity cannot be folded", extra={"family": entity.id.family})
            told = error if isinstance(error, CodedError) else None
            text = f"{entity.id} cannot be folded: {error!r}"
            entity.load_error = told or Failed("NODE_FAILED", text)
            entity.requeue([work])
            return False
        if family in self._decider.reacts_to and number > draft.reacted_count(family):
            return True
        if draft.facts:
            draft.end(work, "observed", ())
        else:
            entity.finish([work])
        return False

    def _retry_from_journal(
        self, entity: Entity, draft: UnitOfWork, work: PendingCommand, error: Exception
    ) -> None:
        """Discard the unit of work and the state, and load the entity again. No reply was sent for
        it."""
        work.failures += 1
        name = self._decider.family
        log.exception(
            "a command made its actor fail", extra={"family": name, "id": work.command.id}
        )
        again = list(draft.commands)
        if work.failures < FAILURES_MAX:
            again.append(work)
        else:
            self.quarantine(work, error)
            entity.finish([work])
        entity.requeue(again)
        self._context.metrics.restarted(name)
        self._reload(entity)

    def quarantine(self, work: PendingCommand, error: Exception) -> None:
        """Set a command aside with the error."""
        self._context.metrics.quarantined(work.command.verb)
        self._context.quarantine(work, error)
