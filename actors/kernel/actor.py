"""``FamilyActor``: the actor that owns one family's entities on a node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

import msgspec
from msgspec import UNSET

from rookery.actors.kernel.command_processor import CommandProcessor
from rookery.actors.kernel.command_router import decode_delivery, wrap_undecoded
from rookery.actors.kernel.decider import Decider, Effect, RedirectsToQuery, ResumesFromState
from rookery.actors.kernel.entities.entity import Entity, PendingCommand, ReactionSource
from rookery.actors.kernel.entities.mailbox import (
    BodyStored,
    CommandsArrived,
    CommitHeld,
    DrainActor,
    FactsCaughtUp,
    FactsCommitted,
    HistoryLoaded,
    LoadFailed,
    LoopActor,
    Mailbox,
    Passivate,
    ReleaseEntities,
    ReloadBroken,
    ResumeEffects,
)
from rookery.actors.kernel.entities.unit_of_work import Commit, CommitResults
from rookery.actors.kernel.executors.asks import LocalCommand
from rookery.actors.kernel.runtime.node import ActorContext
from rookery.bus.ports import IN_FACT_BYTES_MAX, Appended, AppendRejected
from rookery.schemas.envelope import Command, EntityId
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.ids import reaction_id

__all__ = ["FamilyActor"]

log = logging.getLogger(__name__)

CONFLICTS_MAX = 3
SNAPSHOT_FACTS_MIN = 64
"""With fewer new facts, folding the tail is faster than storing a snapshot."""


class FamilyActor(LoopActor):
    """The actor that owns every entity of one family on a node.

    It holds the entities and their order, and never blocks. The rules are the ``Decider``'s; reads
    and appends run on the bus's loop behind ``ActorContext``. The story of a command, step by step
    (A: in this actor's handler, L: elsewhere on the bus's loop, which runs both):

    1. L: the request endpoint or the inbox passes a batch of deliveries to ``CommandRouter``, which
       posts the commands of this family to its ``Mailbox``. The first post of a batch wakes the
       actor by pykka's ``tell``.
    2. A: ``on_receive`` drains the mailbox and calls the handler of each message. All messages
       posted since the last wake are processed together.
    3. A: ``_on_commands`` decodes each delivery to a ``PendingCommand`` and appends it to its
       ``Entity``. An invalid delivery is refused; a query is passed on to the node.
    4. A, L: an entity that is not in memory is loaded. ``EntityLoader`` gets its messages from
       ``KeyHistories`` or, if they are many, reads its snapshot and the messages after it,
       ``Entity.fold`` restores the state, and if the decider observes other families a catch-up
       brings their facts. Meanwhile the entity's commands wait.
    5. A: ``CommandProcessor.process`` decides the reactions of an entity, then its commands. It
       answers duplicates, calls ``Decider.decide``, and adds the facts to a ``UnitOfWork``, which
       fills in their envelopes, folds them, and derives effects and replies. Facts that may
       wait (``Decider.hold_s``) are held: their effects start at once, and the entity's next facts
       join them.
    6. A: ``flush`` passes the wake's commits to the ``Committer``. Until a commit is acknowledged,
       the entity decides nothing more, and nothing of the commit leaves the node.
    7. L: the ``Committer`` appends commits in groups. A watermark hold ensures that a crash from
       here on loses no reaction and no effect.
    8. L: on the ack, in this order: ``FactRouter`` posts the facts to the families that react,
       this mailbox gets the ``CommitResults``, clients get their replies (the inbox its acks), and
       ``EffectRunner`` starts the effects.
    9. A: ``_on_results`` makes the state after the facts the entity's state. After a conflict the
       entity is loaded and its commands are decided again; a rejected commit refuses its command.

    Idle entities are evicted (``Passivate``), as are those whose partition moves to another node
    (``ReleaseEntities``).
    """

    def __init__(self, decider: Decider, mailbox: Mailbox, context: ActorContext) -> None:
        super().__init__(context.run_soon)
        self._decider, self._mailbox, self._context = decider, mailbox, context
        self._redirects_to = (
            decider.redirects_to if isinstance(decider, RedirectsToQuery) else lambda _: ""
        )
        self._resumes = decider if isinstance(decider, ResumesFromState) else None
        self._entities: dict[str, Entity] = {}
        mailbox.entities = self._entities
        self._now_ms = context.now_ms()
        self._processor = CommandProcessor(
            decider, context, mailbox, reload=self._reload, catch_up=self._catch_up
        )
        self._message_count = 0
        self._on_quiet: Callable[[int], None] | None = None
        self._on_released: list[Callable[[], None]] = []
        self._handlers: dict[type, Callable[[Any], Sequence[Entity] | None]] = {
            CommandsArrived: self._on_commands,
            CommitResults: self._on_results,
            CommitHeld: self._on_commit_held,
            FactsCommitted: self._on_facts,
            LocalCommand: self._on_local_command,
            HistoryLoaded: self._on_loaded,
            FactsCaughtUp: self._on_caught_up,
            BodyStored: self._on_body_stored,
            LoadFailed: self._on_load_failed,
            ResumeEffects: self._on_resume_effects,
            Passivate: self._on_passivate,
            ReleaseEntities: self._on_release,
            ReloadBroken: self._on_reload_broken,
            DrainActor: self._on_drain,
        }

    def on_receive(self, message: Any) -> None:
        """Process everything posted since the last wake."""
        del message
        self._now_ms = self._context.now_ms()
        touched: dict[Entity, None] = {}
        for item in self._mailbox.drain():
            for entity in self._handle(item):
                touched[entity] = None
        for entity in touched:
            while entity.is_ready:
                self._processor.process(entity, self._now_ms)
            self._processor.commit_held(entity)
            if entity.was_reloaded:
                self._ensure_effects(entity)
        self._context.failpoints.hit("decided")
        self._processor.flush()
        while self._on_released:
            self._on_released.pop()()
        if self._on_quiet is not None:
            self._check_quiet(self._on_quiet)

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ask the node for a successor, which starts from the journal: this is a bug of the
        kernel."""
        del exception_type, exception_value, traceback  # pykka has logged them.
        self._context.actor_failed(self._decider)

    def _handle(self, item: object) -> Sequence[Entity]:
        """Call the message's handler; it returns the entities that may now be ready."""
        handler = self._handlers.get(type(item))
        if handler is None:
            raise TypeError(f"{type(item).__name__} is not an actor message")
        self._message_count += not isinstance(item, DrainActor)
        return handler(item) or ()

    # --- commands and history -------------------------------------------------------------------

    def _on_commands(self, deliveries: CommandsArrived) -> list[Entity]:
        self._context.failpoints.hit("pulled")
        touched: list[Entity] = []
        now_s, bytes_max = perf_counter(), self._context.payload_bytes_max
        for delivery in deliveries:
            limit = deliveries.in_flight_limit if delivery.position is None else None
            try:
                pending = decode_delivery(delivery, self._decider, now_s, bytes_max)
                query = self._redirects_to(pending.command)
            except CodedError as error:
                self._processor.refuse_undecoded(delivery, error)
            except Exception as error:  # A rule may raise only CodedError; anything else is a bug.
                log.exception("command failed its actor", extra={"id": delivery.id})
                self._processor.quarantine(wrap_undecoded(delivery, now_s), error)
            else:
                if not query:
                    pending.in_flight_limit = limit
                    touched.append(self._enqueue(pending, len(delivery.body)))
                    continue
                self._context.redirect(delivery, query)
            if limit is not None:
                limit.exit(delivery.by, len(delivery.body))
        return touched

    def _enqueue(self, pending: PendingCommand, size_bytes: int) -> Entity:
        entity = self._add_pending(pending)
        if size_bytes > IN_FACT_BYTES_MAX and self._decider.stores_large_bodies:
            entity.reads_in_flight += 1
            self._context.store_body(entity, pending, self._mailbox)
        return entity

    def _on_body_stored(self, item: BodyStored) -> Sequence[Entity]:
        item.pending.command = msgspec.structs.replace(item.pending.command, blob=item.digest)
        return self._on_read_done(item.entity)

    def _on_local_command(self, item: LocalCommand) -> Sequence[Entity]:
        return (self._add_pending(PendingCommand(item.command, "", perf_counter(), item.delivery)),)

    def _add_pending(self, pending: PendingCommand) -> Entity:
        entity = self._entity(pending.command.key)
        entity.commands.append(pending)
        return entity

    def _entity(self, key: str) -> Entity:
        entity = self._entities.get(key)
        if entity is None:
            entity = Entity(EntityId(self._decider.family, key), self._decider)
            self._entities[key] = entity
            self._load(entity)
        entity.touched_ms = self._now_ms
        return entity

    def _load(self, entity: Entity, *, whole: bool = False) -> None:
        entity.requeue_held()
        entity.reads_in_flight += 1
        entity.needs_catch_up = entity.needs_catch_up or bool(self._decider.observes)
        self._context.load(self._decider, entity, self._mailbox, whole=whole)

    def _reload(self, entity: Entity, *, whole: bool = False) -> None:
        """Load the entity from the journal, because its state may not be the newest."""
        entity.is_stale = True
        self._load(entity, whole=whole)

    def _on_read_done(self, entity: Entity) -> Sequence[Entity]:
        """Count a finished read; an entity evicted in the meantime releases its commands
        instead."""
        entity.reads_in_flight -= 1
        if self._holds(entity):
            self._restart_effects(entity)
            return (entity,)
        self._processor.release(entity.drain_pending())
        return ()

    def _holds(self, entity: Entity) -> bool:
        return self._entities.get(entity.id.key) is entity

    def _on_loaded(self, item: HistoryLoaded) -> Sequence[Entity]:
        entity = item.entity
        known = frozenset[object]() if entity.load_error else self._required_effects(entity)
        entity.fold(self._decider, item.snapshot, item.tail)
        if not self._holds(entity):
            pass
        elif entity.load_error is not None and item.snapshot is not None:
            log.warning("snapshot ignored, history loaded", extra={"code": entity.load_error.code})
            self._reload(entity, whole=True)
        else:
            self._processor.report_loaded(entity)
            entity.was_reloaded = entity.load_error is None and self._resumes is not None
            entity.required_effects = self._required_effects(entity) - known
            others = self._decider.reacts_to | self._decider.observes
            must_catch_up = entity.needs_catch_up or bool(others and entity.required_effects)
            if entity.load_error is None and must_catch_up:
                self._catch_up(entity)
        return self._on_read_done(entity)

    def _on_reload_broken(self, item: ReloadBroken) -> None:
        """Fold an entity again that runs wait for, in memory or not, and catch up."""
        known = self._entities.get(item.key)
        if known is not None and known.load_error is not None:
            known.needs_catch_up |= bool(self._decider.reacts_to)
            self._reload(known, whole=True)
        elif known is None and item.family == self._decider.family:
            self._entity(item.key).needs_catch_up |= bool(self._decider.reacts_to)

    def _on_load_failed(self, item: LoadFailed) -> Sequence[Entity]:
        """Handle a read that failed for good. Without its body one command is refused; without its
        history every command of the entity is."""
        entity, pending = item.entity, item.pending
        if pending is None:
            entity.load_error = item.error
        elif pending in entity.commands:
            entity.commands.remove(pending)
            self._processor.refuse(entity, pending, item.error)
        return self._on_read_done(entity)

    def _restart_effects(self, entity: Entity) -> None:
        """Start the effects that waited for the state, once no read and no append is in flight:
        either may end them. An entity that cannot be folded keeps its holds, so that a version that
        can fold it finds the effects again."""
        if entity.reads_in_flight or entity.committing:
            return
        newest = max((sequence for sequence, _, _ in entity.effects_to_resume), default=0)
        if newest > max(entity.sequence, entity.reread_sequence) and not entity.load_error:
            entity.reread_sequence = newest  # The read was older than this fact.
            self._reload(entity)
            return
        resumed, entity.effects_to_resume = entity.effects_to_resume, []
        for sequence, facts, hold in () if entity.load_error else resumed:
            try:
                effects = [e for fact in facts for e in self._decider.effects(entity.state, fact)]
            except Exception:
                log.exception("effects not derived, left to another version")
            else:
                self._context.resume_effects(entity.id.key, sequence, effects, hold)

    def _ensure_effects(self, entity: Entity) -> None:
        """Start the effects that the reloaded state calls for. The actor waits until no command is
        pending, because a pending one may end them. If the decider observes other families, their
        facts complete the state first. The effects are idempotent."""
        if entity.load_error is not None or not self._holds(entity):
            entity.was_reloaded = False
        elif entity.is_idle:
            entity.was_reloaded = False
            effects = self._pending_effects(entity)
            if not self._decider.observes:
                effects = [e for e in effects if (type(e), e.key) in entity.required_effects]
            if effects:
                self._context.ensure_effects(entity.id.key, entity.sequence, effects)

    def _required_effects(self, entity: Entity) -> frozenset[object]:
        return frozenset((type(effect), effect.key) for effect in self._pending_effects(entity))

    def _pending_effects(self, entity: Entity) -> Sequence[Effect]:
        if self._resumes is None:
            return ()
        try:
            return self._resumes.pending_effects(entity.state, entity.id.key)
        except Exception:
            log.exception("pending effects not derived, left to another version")
            return ()

    # --- reactions and effects ------------------------------------------------------------------

    def _on_facts(self, item: FactsCommitted) -> Sequence[Entity]:
        """Queue a reaction to each fact; ``CommandProcessor`` checks the order when it decides. If
        the family only observes the facts and the entity is not in memory, a later load reads them
        from the journal."""
        family, key = item.source
        if key not in self._entities and family not in self._decider.reacts_to:
            for _, _, hold in item.numbered:
                hold.release()
            return ()
        if not item.numbered:
            if (held := self._entities.get(key)) is not None:
                held.pass_over(family, item.first, item.last, item.sequence)
            return ()
        entity = self._entity(key)
        entity.reactions.extend(_to_reactions(item, self._decider.family))
        return (entity,)

    def _catch_up(self, entity: Entity) -> None:
        """Read the facts of other families under this key since the last one handled."""
        entity.reads_in_flight += 1
        entity.needs_catch_up = False
        skip_unreadable, entity.skips_unreadable = entity.skips_unreadable, False
        self._context.catch_up(
            self._decider, entity, self._mailbox, skip_unreadable=skip_unreadable
        )

    def _on_caught_up(self, item: FactsCaughtUp) -> Sequence[Entity]:
        entity = item.entity
        missed: list[PendingCommand] = []
        missed_families: set[str] = set()
        for message in item.missed:
            family = message.source.family
            if message.numbered:
                missed += _to_reactions(message, self._decider.family)
                missed_families.add(family)
            elif family not in missed_families:
                entity.pass_over(family, message.first, message.last, message.sequence)
        for pending in missed:
            pending.from_journal = True
        entity.requeue(missed)
        entity.key_sequence = max(entity.key_sequence, item.key_sequence)
        return self._on_read_done(entity)

    def _on_resume_effects(self, item: ResumeEffects) -> Sequence[Entity]:
        """Start the effects of facts that the partition's previous owner may not have finished."""
        entity = self._entity(item.key)
        entity.effects_to_resume.append((item.sequence, item.facts, item.hold))
        self._restart_effects(entity)
        return (entity,)

    def _on_commit_held(self, item: CommitHeld) -> Sequence[Entity]:
        """The facts have waited long enough."""
        item.unit.hold_s = 0.0
        entity = item.unit.entity
        return (entity,) if self._holds(entity) else ()

    # --- results of commits ---------------------------------------------------------------------

    def _on_results(self, results: CommitResults) -> list[Entity]:
        touched: list[Entity] = []
        for outcome in results:
            commit = outcome.append
            assert isinstance(commit, Commit)
            entity = commit.entity_record
            entity.committing = False
            if isinstance(outcome, Appended):
                entity.apply_commit(commit.state, outcome.sequence, commit.chain, commit.facts)
                entity.finish(commit.commands)
                if entity.load_error is not None:  # A restart fact was committed.
                    self._reload(entity)
            elif not self._holds(entity):
                self._processor.release(commit.commands)
            elif isinstance(outcome, AppendRejected):
                self._reject(entity, commit.commands, Failed(outcome.code, outcome.message))
            else:
                self._retry_conflicted(entity, commit)
            if self._holds(entity):
                if entity.effects_to_resume:
                    self._restart_effects(entity)
                touched.append(entity)
        self._context.failpoints.hit("evolved")
        return touched

    def _reject(
        self, entity: Entity, pending_commands: list[PendingCommand], error: Failed
    ) -> None:
        """Refuse a command whose message the journal rejected. Commands rejected together are
        decided again, each in a message of its own."""
        self._processor.report_state(entity.id.key, entity.state)
        if len(pending_commands) == 1:
            self._processor.refuse(entity, pending_commands[0], error)
            return
        for pending in pending_commands:
            pending.commit_alone = True
        entity.requeue(pending_commands)

    def _retry_conflicted(self, entity: Entity, commit: Commit) -> None:
        """Decide again after another node wrote to the key. A client's command fails after 3
        conflicts; a reaction is repeated until it is committed."""
        self._context.metrics.conflict(self._decider.family)
        retried: list[PendingCommand] = []
        for pending in commit.commands:
            pending.conflicts += 1
            if pending.delivery is not None and pending.conflicts > CONFLICTS_MAX:
                error = Failed(
                    "CONFLICT", f"{entity.id} changed {pending.conflicts} times meanwhile"
                )
                self._processor.refuse(entity, pending, error)
            else:
                retried.append(pending)
        entity.requeue(retried)
        entity.needs_catch_up = entity.needs_catch_up or commit.fence is not None
        if entity.load_error is None and entity.sequence:  # Its state is committed.
            entity.known = entity.snapshot(self._decider)
        self._reload(entity)

    # --- eviction -------------------------------------------------------------------------------

    def _on_release(self, item: ReleaseEntities) -> None:
        self._on_released.append(item.on_done)
        for key in [key for key in self._entities if item.is_lost(key)]:
            self._processor.release(self._entities.pop(key).drain_pending())
            self._processor.report_state(key, None)

    def _on_passivate(self, item: Passivate) -> None:
        """Evict idle entities; those with a long tail store a snapshot."""
        for key, entity in list(self._entities.items()):
            if entity.is_idle and entity.touched_ms < item.before_ms:
                del self._entities[key]
                self._processor.report_state(key, None)
                self._save(entity)

    def _save(self, entity: Entity) -> None:
        if entity.fact_count - entity.saved_fact_count < SNAPSHOT_FACTS_MIN or entity.load_error:
            return
        if (snapshot := entity.snapshot(self._decider)) is not None:
            entity.saved_fact_count = entity.fact_count
            self._context.save(entity.id, self._decider.schema, snapshot)

    def _on_drain(self, item: DrainActor) -> None:
        self._on_quiet = item.on_quiet
        for entity in self._entities.values():
            if entity.held is not None:
                entity.held.hold_s = 0.0
                self._processor.commit_held(entity)

    def _check_quiet(self, then: Callable[[int], None]) -> None:
        if all(entity.is_idle for entity in self._entities.values()):
            self._on_quiet = None
            for entity in self._entities.values():
                self._save(entity)
            then(self._message_count)


def _to_reactions(item: FactsCommitted, family: str) -> list[PendingCommand]:
    now_s = perf_counter()
    source, sequence, after = item.source, item.sequence, item.first - 1
    reactions = []
    for place, (number, fact, hold) in enumerate(item.numbered, 1):
        through = item.last if place == len(item.numbered) else number
        command = Command(
            verb=source.family,
            key=source.key,
            id=reaction_id(fact.id, family),
            body=fact,
            sequence=sequence,
            traceparent="" if fact.traceparent is UNSET else fact.traceparent,
        )
        origin = ReactionSource(source.family, number, sequence, after, through)
        reactions.append(PendingCommand(command, "", now_s, source=origin, hold=hold))
        after = number
    return reactions
