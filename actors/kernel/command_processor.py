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

from rookery.actors.histories import (
    HISTORY_COMMANDS,
    OTHER_VERSIONS,
    HistoryCheck,
    HistoryView,
    Restartable,
    RestartHistory,
)
from rookery.actors.kernel.decider import Decider, Effect, ReadsBeforeDeciding, ReadScope
from rookery.actors.kernel.entities.entity import Entity, PendingCommand
from rookery.actors.kernel.entities.mailbox import Mailbox
from rookery.actors.kernel.entities.unit_of_work import Commit, Completions, UnitOfWork
from rookery.actors.kernel.executors.asks import reply_of
from rookery.actors.kernel.runtime.node import ActorContext
from rookery.bus.ports import Delivery
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = ["CommandProcessor"]

log = logging.getLogger(__name__)

FAILURES_MAX = 3


class CommandProcessor:
    """One per actor, used in its handler."""

    def __init__(
        self,
        decider: Decider,
        context: ActorContext,
        mailbox: Mailbox,
        *,
        reload: Callable[[Entity], None],
        catch_up: Callable[[Entity], None],
    ) -> None:
        self._decider, self._context, self._mailbox = decider, context, mailbox
        self._reads_before = decider if isinstance(decider, ReadsBeforeDeciding) else None
        self._restartable = decider if isinstance(decider, Restartable) else None
        self._reload, self._catch_up = reload, catch_up
        self._source = f"{decider.family}@{context.node}"
        self._commits: list[Commit] = []
        self._completions = Completions()

    def flush(self) -> None:
        """Pass on the collected commits and the completions that need no commit."""
        if self._commits or self._completions:
            commits, self._commits = self._commits, []
            completions, self._completions = self._completions, Completions()
            self._context.commit(commits, completions)

    def _new_unit(self, entity: Entity) -> UnitOfWork:
        return UnitOfWork(entity, self._decider, self._source, self._context.classes)

    def process(self, entity: Entity, now_ms: int) -> None:
        """Decide the entity's pending commands, as many as fit into one message."""
        if entity.load_error is not None:
            self._process_damaged(entity, entity.load_error, now_ms)
            return
        unit = entity.held or self._new_unit(entity)
        entity.held = None
        while entity.is_ready and not unit.is_full and entity.load_error is None:
            pending = entity.pop_next()
            if self._reads_before is not None and self._reads_first(
                self._reads_before, entity, unit, pending
            ):
                break
            try:
                self._decide(entity, unit, pending, now_ms)
            except CodedError as error:
                if unit.facts:
                    unit.refuse(pending, error)
                else:
                    self.refuse(entity, pending, error)
            except Exception as error:  # A rule may raise only CodedError; anything else is a bug.
                self._retry_from_journal(entity, unit, pending, error)
                return
        if unit.facts and (not unit.hold_s or entity.has_pending):
            self._commit(entity, unit)
        elif unit.facts:
            self._hold(entity, unit)

    def commit_held(self, entity: Entity) -> None:
        """Commit the entity's held facts if they may wait no longer."""
        if entity.held is not None and not entity.held.hold_s:
            unit, entity.held = entity.held, None
            self._commit(entity, unit)

    def _hold(self, entity: Entity, unit: UnitOfWork) -> None:
        """Hold facts for a moment and start their effects. If the facts are lost with the process,
        their cause is found by its watermark hold and decided again."""
        entity.held = unit
        self._completions.replies += unit.pop_early_replies()
        self.report_state(entity.id.key, unit.state)
        self._context.start_early(unit, self._mailbox)

    def _commit(self, entity: Entity, unit: UnitOfWork) -> None:
        entity.committing = True
        self.report_state(entity.id.key, unit.state)
        message_id = self._context.next_message_id()
        self._commits.append(unit.commit(message_id, self._mailbox, perf_counter()))

    def report_state(self, key: str, state: Any | None) -> None:
        """Pass a state to the decider's ``on_state``. A failure there is logged and does not stop
        the actor."""
        try:
            self._decider.on_state(key, state)
        except Exception:
            log.exception("on_state failed", extra={"family": self._decider.family})

    def report_loaded(self, entity: Entity) -> None:
        """Report the state of an entity that was loaded, and whether its history is broken."""
        if (error := entity.load_error) is not None:
            self._context.metrics.history_broken(entity.id.family, error.code)
            log.error("entity broken", extra={"family": entity.id.family, "code": error.code})
        self.report_state(entity.id.key, entity.state)

    # --- ends that need no commit ---------------------------------------------------------------

    def refuse(self, entity: Entity, pending: PendingCommand, error: CodedError) -> None:
        """End a command without facts. Nothing undecided may precede it in the unit of work."""
        if pending.delivery is None:
            log.info("reaction refused", extra={"code": error.code, "id": pending.command.id})
        else:
            self._completions.refuse_by(self._decider, pending.delivery, error)
        self._finish(entity, pending, "refused")

    def refuse_undecoded(self, delivery: Delivery, error: CodedError) -> None:
        """Refuse a delivery that could not be decoded."""
        self._context.metrics.command("invalid", "refused", 0.0)
        self._completions.refuse_by(self._decider, delivery, error)

    def release(self, pending_commands: Sequence[PendingCommand]) -> None:
        """Drop commands of keys that moved to another node. The inbox and the journal deliver inbox
        commands and reactions to the new owner; a client's request is answered with
        PARTITION_UNOWNED."""
        for pending in pending_commands:
            pending.finish()
            if pending.delivery is not None and pending.delivery.position is None:
                error = Refused("PARTITION_UNOWNED", f"{pending.command.key} moved to another node")
                self._completions.refuse(pending.delivery, error)

    # --- entities that cannot be folded ---------------------------------------------------------

    def _process_damaged(self, entity: Entity, error: CodedError, now_ms: int) -> None:
        """Answer the pending commands of an entity whose history cannot be folded. Reactions keep
        their holds for a version that can fold it, unless an effect reports the broken history."""
        while entity.is_ready:
            pending = entity.pop_next()
            match pending.command.body:
                case HistoryCheck() if not pending.journal_read:
                    pending.journal_read = True
                    entity.requeue([pending])
                    self._reload(entity)
                case HistoryCheck():
                    view = HistoryView(code=error.code, message=error.message)
                    self._completions.replies.append(reply_of(pending.command.reply_to, view))
                    self._finish(entity, pending, "unchanged")
                case RestartHistory() as restart if self._restartable is not None:
                    self._restart_history(self._restartable, entity, pending, restart, now_ms)
                case _:
                    self._refuse_damaged(entity, pending, error)

    def _refuse_damaged(self, entity: Entity, pending: PendingCommand, error: CodedError) -> None:
        effects: Sequence[Effect] = ()
        if self._restartable is not None:
            effects = self._restartable.effects_when_damaged(entity.id.key, pending.command, error)
        if effects:
            self._context.ensure_effects(entity.id.key, entity.sequence, effects)
        if pending.delivery is None:
            if effects:  # Its session ends what it asked for: it is not decided after a repair.
                entity.finish([pending])
            return
        is_session = not entity.id.key.startswith("_")
        if is_session and self._restartable is not None and error.code not in OTHER_VERSIONS:
            hint = f"rookery sessions destroy {entity.id.key}"
            error = type(error)(error.code, error.message, hint=hint)
        self.refuse(entity, pending, error)

    def _restart_history(
        self,
        restarting: Restartable,
        entity: Entity,
        pending: PendingCommand,
        restart: RestartHistory,
        now_ms: int,
    ) -> None:
        """Commit the restart fact. Pending commands are decided after the entity is loaded
        again."""
        assert entity.load_error is not None
        fact = restarting.restart_fact(
            generation=restart.generation,
            code=entity.load_error.code,
            message=entity.load_error.message,
            after_sequence=entity.sequence,
        )
        unit = self._new_unit(entity)
        try:
            unit.add(pending, [fact], now_ms, restart.causes(entity.id))
        except CodedError as error:
            self.refuse(entity, pending, error)
        else:
            self._commit(entity, unit)

    def _finish(self, entity: Entity, pending: PendingCommand, outcome: str) -> None:
        elapsed_s = perf_counter() - pending.received_s
        self._context.metrics.command(pending.command.verb, outcome, elapsed_s)
        entity.finish([pending])

    # --- one command ----------------------------------------------------------------------------

    def _decide(
        self, entity: Entity, unit: UnitOfWork, pending: PendingCommand, now_ms: int
    ) -> None:
        if pending.source is not None and not self._is_next(entity, unit, pending):
            return
        command = pending.command
        known = unit.duplicate_digest(command.id)
        if known is not None and pending.digest != known:
            raise Refused(
                "IDEMPOTENCY_KEY_REUSED",
                f"message id {command.id} was used with another body",
                hint="send a changed request under a new id",
            )
        if type(command.body) in HISTORY_COMMANDS:
            facts: Sequence[Fact] = ()
        elif known is None:
            facts = self._decider.decide(unit.state, command, now_ms=now_ms)
        elif self._decider.handles_duplicates:
            repeated = msgspec.structs.replace(command, is_duplicate=True)
            facts = self._decider.decide(unit.state, repeated, now_ms=now_ms)
        else:
            facts = ()
        if facts:
            unit.add(pending, facts, now_ms)
            return
        replies = unit.replies(command, unit.state)
        outcome = "unchanged" if known is None else "repeated"
        if unit.facts:
            unit.end(pending, outcome, replies)
        else:
            self._completions.replies += replies
            self._completions.ack(pending.delivery)
            self._finish(entity, pending, outcome)

    def _reads_first(
        self,
        skip_unreadable: ReadsBeforeDeciding,
        entity: Entity,
        unit: UnitOfWork,
        pending: PendingCommand,
    ) -> bool:
        """Whether the journal must be read before this command. The unit of work is committed
        first."""
        if pending.journal_read or pending.source is not None:
            return False
        look = skip_unreadable.read_scope(unit.state, pending.command)
        if look is None:
            return False
        entity.requeue([pending])
        if not unit.facts:
            pending.journal_read = entity.skips_unreadable = entity.needs_catch_up = True
            entity.is_stale = True
            entity.reset_reactions()
            (self._reload if look is ReadScope.ALL else self._catch_up)(entity)
        return True

    def _is_next(self, entity: Entity, unit: UnitOfWork, pending: PendingCommand) -> bool:
        """Whether a reaction is next in its family's order. Older ones are finished; newer ones
        wait until the journal has delivered those in between."""
        assert pending.source is not None
        family, number, after = (
            pending.source.family,
            pending.source.number,
            pending.source.after,
        )
        observes = family in self._decider.observes
        known = unit.observed_count(family) if observes else unit.reacted_count(family)
        if after > known and not pending.from_journal:
            entity.requeue([pending])
            self._catch_up(entity)
        elif number <= known:
            pending.finish()
        elif not observes or self._observe(entity, unit, pending):
            return True
        return False

    def _observe(self, entity: Entity, unit: UnitOfWork, pending: PendingCommand) -> bool:
        """Fold a fact of an observed family. True if the decider also reacts to it."""
        assert pending.source is not None
        family, number = pending.source.family, pending.source.number
        try:
            unit.observe(pending.command.body)
        except Exception as error:  # Treated like a failure to fold the entity's own history.
            log.exception("entity not folded", extra={"family": entity.id.family})
            coded = error if isinstance(error, CodedError) else None
            text = f"{entity.id} cannot be folded: {error!r}"
            entity.load_error = coded or Failed("NODE_FAILED", text)
            entity.requeue([pending])
            return False
        if family in self._decider.reacts_to and number > unit.reacted_count(family):
            return True
        if unit.facts:
            unit.end(pending, "observed", ())
        else:
            entity.finish([pending])
        return False

    def _retry_from_journal(
        self, entity: Entity, unit: UnitOfWork, pending: PendingCommand, error: Exception
    ) -> None:
        """Discard the unit of work and the state, and load the entity again. No reply was sent for
        it."""
        pending.failures += 1
        name = self._decider.family
        log.exception("command failed its actor", extra={"family": name, "id": pending.command.id})
        again = list(unit.commands)
        if pending.failures < FAILURES_MAX:
            again.append(pending)
        else:
            self.quarantine(pending, error)
            entity.finish([pending])
        entity.requeue(again)
        self._context.metrics.restarted(name)
        self._reload(entity)

    def quarantine(self, pending: PendingCommand, error: Exception) -> None:
        """Set a command aside with the error."""
        self._context.metrics.quarantined(pending.command.verb)
        self._context.quarantine(pending, error)
