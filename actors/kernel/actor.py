"""The one way to be an actor: a family's entities, decided in batches, committed before they count.

Per wake: drain the mailbox, decide what can be decided, hand it over; on the ack the draft becomes
the state. It owns entities and their order. It refuses to own storage (``Hub``), rules
(``Concern``) and waiting: it never blocks on anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any

import msgspec
import pykka
from msgspec import UNSET

from rookery.actors.kernel.command_processor import Decisions
from rookery.actors.kernel.committer import Commit, Outcomes
from rookery.actors.kernel.context import Hub
from rookery.actors.kernel.decider import Concern, Diverting, Effect, GoingOn
from rookery.actors.kernel.delivery_decoder import unchecked, work_from
from rookery.actors.kernel.entity import Entity, Origin, Work
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import (
    Arrivals,
    Caught,
    Forget,
    Handover,
    Internal,
    Kept,
    Loaded,
    Passivate,
    Quiesce,
    Resume,
    Unread,
)
from rookery.bus.ports import IN_FACT_BYTES_MAX, Rejected, Settled
from rookery.schemas.envelope import Command, EntityId
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.ids import reaction_id

__all__ = ["FamilyActor"]

log = logging.getLogger(__name__)

CONFLICTS_MAX = 3
SNAPSHOT_FACTS_MIN = 64
"""Below this many new facts, folding the tail is quicker than keeping a snapshot."""


class FamilyActor(pykka.ThreadingActor):
    """Owns every entity of one family on this node."""

    use_daemon_thread = True

    def __init__(self, concern: Concern, mailbox: Mailbox, hub: Hub) -> None:
        super().__init__()
        self._concern, self._mailbox, self._hub = concern, mailbox, hub
        self._diverts = concern.diverts if isinstance(concern, Diverting) else _to_nobody
        self._going_on = concern if isinstance(concern, GoingOn) else None
        self._entities: dict[str, Entity] = {}
        mailbox.entities = self._entities
        self._now_ms = hub.now_ms()
        self._decisions = Decisions(
            concern, hub, mailbox, reload=self._load, catch_up=self._catch_up
        )
        self._taken = 0
        self._quiesced: Callable[[int], None] | None = None
        self._forgotten: list[Callable[[], None]] = []
        self._takes: dict[type, Callable[[Any], Sequence[Entity] | None]] = {
            Arrivals: self._arrive,
            Outcomes: self._conclude,
            Handover: self._react,
            Internal: self._internal,
            Loaded: self._loaded,
            Caught: self._caught,
            Kept: self._kept,
            Unread: self._unread,
            Resume: self._resume,
            Passivate: self._passivate,
            Forget: self._forget,
            Quiesce: self._quiesce,
        }

    @staticmethod
    def _create_actor_inbox() -> SimpleQueue[Any]:
        """Each wake-up passes through here; pykka's own queue takes half as long again to do so."""
        return SimpleQueue()

    def on_receive(self, message: Any) -> None:
        """One wake: everything that was posted meanwhile, worked off together."""
        del message
        self._now_ms = self._hub.now_ms()
        touched: dict[Entity, None] = {}
        for item in self._mailbox.drain():
            for entity in self._take(item):
                touched[entity] = None
        for entity in touched:
            while entity.ready:
                self._decisions.take(entity, self._now_ms)
            if entity.read_anew:
                self._go_on(entity)
        self._hub.failpoints.hit("decided")
        self._decisions.flush()
        while self._forgotten:
            self._forgotten.pop()()
        self._hub.cached(self._concern.family, len(self._entities))
        if self._quiesced is not None:
            self._check_quiet(self._quiesced)

    def on_failure(
        self,
        exception_type: type[BaseException] | None,
        exception_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The kernel itself failed here: a successor starts from the journal."""
        del exception_type, exception_value, traceback  # pykka has logged them.
        self._hub.actor_failed(self._concern)

    def _take(self, item: object) -> Sequence[Entity]:
        """Each message has its method; those that concern entities say which."""
        take = self._takes.get(type(item))
        if take is None:
            raise TypeError(f"{type(item).__name__} is no message for an actor")
        self._taken += not isinstance(item, Quiesce)
        return take(item) or ()

    # --- commands and history -------------------------------------------------------------------

    def _arrive(self, deliveries: Arrivals) -> list[Entity]:
        self._hub.failpoints.hit("pulled")
        touched: list[Entity] = []
        now_s, bytes_max = perf_counter(), self._hub.payload_bytes_max
        for delivery in deliveries:
            room = deliveries.room if delivery.position is None else None
            try:
                work = work_from(delivery, self._concern, now_s, bytes_max)
                query = self._diverts(work.command)
            except CodedError as error:
                self._decisions.refuse_delivery(delivery, error)
            except Exception as error:  # A rule that raises anything else is a bug of ours.
                log.exception("a command made its actor fail", extra={"id": delivery.id})
                self._decisions.set_aside(unchecked(delivery, now_s), error)
            else:
                if not query:
                    work.room = room
                    touched.append(self._take_in(work, len(delivery.body)))
                    continue
                self._hub.divert(delivery, query)
            if room is not None:
                room.leave(len(delivery.body))
        return touched

    def _take_in(self, work: Work, size_bytes: int) -> Entity:
        entity = self._queue(work)
        if size_bytes > IN_FACT_BYTES_MAX and self._concern.keeps_bodies:
            entity.loads += 1
            self._hub.keep(entity, work, self._mailbox)
        return entity

    def _kept(self, item: Kept) -> Sequence[Entity]:
        item.work.command = msgspec.structs.replace(item.work.command, blob=item.digest)
        return self._returned(item.home)

    def _internal(self, item: Internal) -> Sequence[Entity]:
        return (self._queue(Work(item.command, "", perf_counter(), item.delivery)),)

    def _queue(self, work: Work) -> Entity:
        entity = self._entity(work.command.key)
        entity.waiting.append(work)
        return entity

    def _entity(self, key: str) -> Entity:
        entity = self._entities.get(key)
        if entity is None:
            entity = Entity(EntityId(self._concern.family, key), self._concern)
            self._entities[key] = entity
            self._load(entity)
        entity.touched_ms = self._now_ms
        return entity

    def _load(self, entity: Entity, *, whole: bool = False) -> None:
        entity.loads += 1
        entity.behind = entity.behind or bool(self._concern.observes)
        self._hub.load(self._concern, entity, self._mailbox, whole=whole)

    def _returned(self, entity: Entity) -> Sequence[Entity]:
        """A read is back; an entity that was let go of meanwhile has no use for it."""
        entity.loads -= 1
        if self._keeps(entity):
            self._start_again(entity)
            return (entity,)
        self._decisions.disown(entity.let_go())
        return ()

    def _keeps(self, entity: Entity) -> bool:
        return self._entities.get(entity.id.key) is entity

    def _loaded(self, item: Loaded) -> Sequence[Entity]:
        entity = item.home
        before = frozenset[object]() if entity.broken else self._called_for(entity)
        entity.fold(self._concern, item.snapshot, item.tail)
        if not self._keeps(entity):
            pass
        elif entity.broken is not None and item.snapshot is not None:
            log.warning("a snapshot is not used", extra={"code": entity.broken.code})
            self._load(entity, whole=True)
        else:
            self._decisions.note(entity.id.key, entity.state)
            entity.read_anew = entity.broken is None and self._going_on is not None
            entity.called_for = self._called_for(entity) - before
            others = self._concern.reacts_to | self._concern.observes
            behind = entity.behind or bool(others and entity.called_for)
            if entity.broken is None and behind:
                self._catch_up(entity)
        return self._returned(entity)

    def _unread(self, item: Unread) -> Sequence[Entity]:
        """What was asked for will not come. Without its body one command is lost, without its
        history the whole entity."""
        entity, work = item.home, item.work
        if work is None:
            entity.broken = item.error
        elif work in entity.waiting:
            entity.waiting.remove(work)
            self._decisions.refuse(entity, work, item.error)
        return self._returned(entity)

    def _start_again(self, entity: Entity) -> None:
        """Effects that waited for the state, whatever was read last: what is on its way may be what
        ends them. What cannot be folded keeps its tickets: a version that can finds them again."""
        if entity.loads or entity.committing:
            return
        newest = max((sequence for sequence, _, _ in entity.resuming), default=0)
        if newest > max(entity.sequence, entity.read_for) and not entity.broken:
            entity.read_for = newest  # It was read before this fact came to be stored.
            self._load(entity)
            return
        resuming, entity.resuming = entity.resuming, []
        for sequence, facts, ticket in () if entity.broken else resuming:
            try:
                effects = [e for fact in facts for e in self._concern.effects(entity.state, fact)]
            except Exception:
                log.exception("effects are left to a version that knows them")
            else:
                self._hub.perform(entity.id.key, sequence, effects, ticket)

    def _go_on(self, entity: Entity) -> None:
        """What was read calls for something, whoever was to see to it. It is begun when nothing is
        left to be decided: that may be what ends it. Where others are observed, only then is known
        what it is; begun twice, it comes to the same."""
        if entity.broken is not None or not self._keeps(entity):
            entity.read_anew = False
        elif entity.idle:
            entity.read_anew = False
            effects = self._unfinished(entity)
            if not self._concern.observes:
                effects = [e for e in effects if (type(e), e.key) in entity.called_for]
            if effects:
                self._hub.go_on(entity.id.key, entity.sequence, effects)

    def _called_for(self, entity: Entity) -> frozenset[object]:
        return frozenset((type(effect), effect.key) for effect in self._unfinished(entity))

    def _unfinished(self, entity: Entity) -> Sequence[Effect]:
        if self._going_on is None:
            return ()
        try:
            return self._going_on.unfinished(entity.state, entity.id.key)
        except Exception:
            log.exception("what is unfinished is left to a version that knows it")
            return ()

    # --- reactions and effects ------------------------------------------------------------------

    def _react(self, item: Handover) -> Sequence[Entity]:
        """Queue a reaction to each fact; whether it is due is asked when its turn comes. What is
        only observed waits in the journal for an entity that is not here."""
        family, key = item.source
        if key not in self._entities and family not in self._concern.reacts_to:
            for _, _, ticket in item.due:
                ticket.close()
            return ()
        entity = self._entity(key)
        entity.reactions.extend(_reactions(item, self._concern.family))
        return (entity,)

    def _catch_up(self, entity: Entity) -> None:
        """Fetch what other families did under this key since the last fact handled."""
        entity.loads += 1
        entity.behind = False
        looking, entity.looking = entity.looking, False
        self._hub.catch_up(self._concern, entity, self._mailbox, looking=looking)

    def _caught(self, item: Caught) -> Sequence[Entity]:
        entity = item.home
        missed = [w for handover in item.missed for w in _reactions(handover, self._concern.family)]
        for work in missed:
            work.fetched = True
        entity.put_back(missed)
        entity.seen = max(entity.seen, item.seen)
        return self._returned(entity)

    def _resume(self, item: Resume) -> Sequence[Entity]:
        """After a takeover: start again the effects of facts whose effects may not have ended."""
        entity = self._entity(item.key)
        entity.resuming.append((item.sequence, item.facts, item.ticket))
        self._start_again(entity)
        return (entity,)

    # --- what became of commits -----------------------------------------------------------------

    def _conclude(self, outcomes: Outcomes) -> list[Entity]:
        touched: list[Entity] = []
        for outcome in outcomes:
            commit = outcome.append
            assert isinstance(commit, Commit)
            entity = commit.home
            entity.committing = False
            if isinstance(outcome, Settled):
                entity.commit(commit.state, outcome.sequence, commit.chain, commit.facts)
                entity.end(commit.works)
                if entity.broken is not None:  # It begins anew.
                    self._load(entity)
            elif not self._keeps(entity):
                self._decisions.disown(commit.works)
            elif isinstance(outcome, Rejected):
                self._reject(entity, commit.works, Failed(outcome.code, outcome.message))
            else:
                self._decide_again(entity, commit)
            if self._keeps(entity):
                if entity.resuming:
                    self._start_again(entity)
                touched.append(entity)
        self._hub.failpoints.hit("evolved")
        return touched

    def _reject(self, entity: Entity, works: list[Work], error: Failed) -> None:
        """Nobody could store this message. What only was too much together goes one by one."""
        self._decisions.note(entity.id.key, entity.state)
        if len(works) == 1:
            self._decisions.refuse(entity, works[0], error)
            return
        for work in works:
            work.alone = True
        entity.put_back(works)

    def _decide_again(self, entity: Entity, commit: Commit) -> None:
        """Somebody else wrote meanwhile. Who asked is told when it happens too often; to what
        stands one must react in any case."""
        self._hub.observer.conflict(self._concern.family)
        again: list[Work] = []
        for work in commit.works:
            work.conflicts += 1
            if work.delivery is not None and work.conflicts > CONFLICTS_MAX:
                error = Failed("CONFLICT", f"{entity.id} changed {work.conflicts} times meanwhile")
                self._decisions.refuse(entity, work, error)
            else:
                again.append(work)
        entity.put_back(again)
        entity.behind = entity.behind or commit.fence is not None
        self._load(entity)

    # --- keeping house --------------------------------------------------------------------------

    def _forget(self, item: Forget) -> None:
        self._forgotten.append(item.then)
        for key in [key for key in self._entities if item.gone(key)]:
            self._decisions.disown(self._entities.pop(key).let_go())
            self._decisions.note(key, None)

    def _passivate(self, item: Passivate) -> None:
        """Let go of idle entities; those with a long tail leave a snapshot behind."""
        for key, entity in list(self._entities.items()):
            if entity.idle and entity.touched_ms < item.before_ms:
                del self._entities[key]
                self._decisions.note(key, None)
                self._save(entity)

    def _save(self, entity: Entity) -> None:
        if entity.count - entity.saved_count < SNAPSHOT_FACTS_MIN or entity.broken:
            return
        try:
            snapshot = entity.snapshot(self._concern)
        except Exception:
            log.exception("no snapshot is kept", extra={"family": self._concern.family})
        else:
            self._hub.save(entity.id, self._concern.schema, snapshot)

    def _quiesce(self, item: Quiesce) -> None:
        self._quiesced = item.then

    def _check_quiet(self, then: Callable[[int], None]) -> None:
        if all(entity.idle for entity in self._entities.values()):
            self._quiesced = None
            for entity in self._entities.values():
                self._save(entity)
            then(self._taken)


def _to_nobody(_command: Command[Any]) -> str:
    return ""


def _reactions(item: Handover, family: str) -> list[Work]:
    now_s = perf_counter()
    source, sequence = item.source, item.sequence
    return [
        Work(
            Command(
                verb=source.family,
                key=source.key,
                id=reaction_id(fact.id, family),
                body=fact,
                sequence=sequence,
                traceparent="" if fact.traceparent is UNSET else fact.traceparent,
            ),
            "",
            now_s,
            origin=Origin(source.family, number, sequence),
            ticket=ticket,
        )
        for number, fact, ticket in item.due
    ]
