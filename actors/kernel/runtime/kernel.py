"""``Kernel``: a node's actors, committer, partitions and request endpoint, wired on one bus.

It implements ``ActorContext``. Rules come from the deciders, the wire from the bus, and
configuration from ``ops``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count

import pykka
from msgspec import UNSET

from rookery.actors.histories import KeyHistories
from rookery.actors.kernel.actor import FamilyActor
from rookery.actors.kernel.command_router import CommandRouter
from rookery.actors.kernel.committer import Committer, FactRouter
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.effect_runner import EffectRunner, Watermark, WatermarkHold
from rookery.actors.kernel.entities.entity import Entity, PendingCommand
from rookery.actors.kernel.entities.mailbox import (
    CommitHeld,
    Mailbox,
    Passivate,
    ReleaseEntities,
    ReloadBroken,
    wait_quiet,
)
from rookery.actors.kernel.entities.unit_of_work import (
    Commit,
    CommitResults,
    Completions,
    UnitOfWork,
)
from rookery.actors.kernel.executors.asks import AskActor, EffectHandler, LocalCommand, QueryHandler
from rookery.actors.kernel.loader import EntityLoader
from rookery.actors.kernel.runtime.node import KernelSettings, NodeDecider
from rookery.actors.kernel.runtime.ownership import PartitionOwnership
from rookery.actors.kernel.runtime.recovery import PartitionRecovery
from rookery.actors.keys.checkpoints import CheckpointWriter
from rookery.actors.messages import FactRecorded, RecordFact
from rookery.bus.ports import (
    PARTITIONS,
    Backpressure,
    Bus,
    BusLoop,
    Conflict,
    Delivery,
    EntitySnapshot,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import CommandQuarantined, PartitionsTaken
from rookery.schemas.run import ErrorObject

__all__ = ["Kernel"]

log = logging.getLogger(__name__)

MAINTENANCE_S = 5.0
RECONNECT_S, RECONNECT_POLLS = 3.0, 30
"""How long a stopping node waits for a server that is unreachable."""
RECORD_WARNING_S = 5.0
"""After this time the node logs that the journal does not accept its own facts."""
SNAPSHOTS_S = 2.0
"""How long storing the last snapshots may take."""


class Kernel:
    """From ``start`` to ``stop`` it processes the commands of this node's partitions."""

    def __init__(
        self,
        bus: Bus,
        loop: BusLoop,
        deciders: Sequence[Decider],
        settings: KernelSettings,
        *,
        effect_handlers: Mapping[type[Effect], EffectHandler],
        queries: Mapping[str, QueryHandler],
    ) -> None:
        self._bus, self._loop, self._settings = bus, loop, settings
        self.now_ms, self.metrics = settings.now_ms, settings.metrics
        self.failpoints, self.payload_bytes_max = settings.failpoints, settings.payload_bytes_max
        self.node, self.classes = settings.identity.node, settings.classes
        self._deciders: list[Decider] = [NodeDecider(), *deciders]
        self._mailboxes = {c.family: Mailbox() for c in self._deciders}
        self._actors: dict[str, pykka.ActorRef[FamilyActor]] = {}
        self._watermark, self._numbers = Watermark(), count(1)
        reactions = FactRouter(self._deciders, self._mailboxes, self._watermark)
        self.histories = KeyHistories(bus.journal, self._owns)
        self._loader = EntityLoader(
            bus, self.histories, Decider.codecs_of(self._deciders), reactions
        )
        self._effect_runner = EffectRunner(
            effect_handlers, self._watermark, self.failpoints, self.acts_for, self.metrics
        )
        self._command_router = CommandRouter(
            bus, self._deciders, self._mailboxes, queries, self.metrics, now_ms=self.now_ms
        )
        self._checkpoints = CheckpointWriter(self.node, bus.realm, settings.key, self._record_now)
        self._committer = self._new_committer(reactions)
        self._recovery = PartitionRecovery(
            bus,
            self._deciders,
            self._mailboxes,
            reactions,
            self._watermark,
            is_certain=lambda: self.partitions.is_certain,
            on_newer_term=self._on_newer_term,
        )
        self.partitions = self._new_ownership()
        self.owned_partitions: frozenset[int] = frozenset()
        """Partitions being served or recovered; the node does nothing for other partitions."""
        self._withheld: list[Commit] = []
        self._releasing: dict[str, asyncio.Event] = {}
        self._maintenance: asyncio.Task[None] | None = None
        self.draining = False

    def _new_committer(self, reactions: FactRouter) -> Committer:
        return Committer(
            self._bus.journal,
            reactions,
            self._effect_runner,
            self._watermark,
            self.histories,
            complete=self._command_router.complete,
            metrics=self.metrics,
            on_committed=self._settings.on_committed,
            failpoints=self.failpoints,
            acts_for=self.acts_for,
            on_newer_term=self._on_newer_term,
            checkpoints=self._checkpoints,
        )

    def _new_ownership(self) -> PartitionOwnership:
        return PartitionOwnership(
            self._bus.claims,
            self._settings.identity,
            on_gain=self._on_gained,
            on_loss=self._on_lost,
            on_expiry=self._bus.reset,
            uptime_s=self._settings.uptime_s,
            claim_s=self._settings.claim_s,
            is_cluster=self._settings.is_cluster,
            processes=self._settings.processes,
            is_busy=self._is_busy,
        )

    # --- life -----------------------------------------------------------------------------------

    def register_handlers(self, effect_handlers: Mapping[type[Effect], EffectHandler]) -> None:
        """Add effect handlers that ``ask`` this kernel's actors; call it before ``start``."""
        self._effect_runner.register(effect_handlers)

    def start(self) -> None:
        """Start serving; returns when this node has its share of the partitions."""
        for decider in self._deciders:
            self._start_actor(decider)
        self._loop.run(self._start())
        self.failpoints.arm()

    async def _start(self) -> None:
        await self._bus.request_endpoint.open(self._command_router.deliver)
        await self.partitions.start()
        self._maintenance = asyncio.get_running_loop().create_task(self._maintenance_loop())

    def stop(self, last: Fact | None = None) -> bool:
        """Stop accepting commands, finish the work in flight, release the partitions. ``False`` if
        the time ran out: unfinished work is in the journal or the inbox, and the partitions' next
        owner continues it. All actors end in any case."""
        self.draining = True
        with ExitStack() as ending:
            ending.callback(lambda: self._loop.run(self._stop_actors()))
            ending.callback(lambda: self._loop.run(self._shut_down()))
            self._loop.run(self._stop_intake())
            if last is not None:
                self.record(last)
            return self._loop.run(self._quiesce())

    async def _stop_actors(self) -> None:
        for actor in self._actors.values():
            actor.stop(block=False)
        await asyncio.sleep(0)  # Meanwhile the loop handles these messages.

    async def _stop_intake(self) -> None:
        await self.partitions.freeze()
        self._requeue_withheld()
        await self._bus.request_endpoint.close()
        await asyncio.gather(*(self._bus.inbox.close(p) for p in range(PARTITIONS)))

    async def _quiesce(self) -> bool:
        """Wait until all actors have been idle twice in a row with nothing processed in between.
        Without a server no work can finish, so the node does not wait."""
        if not await self._reachable():
            log.warning("server unreachable: unfinished work is left to the next owner")
            return False
        before: list[int] | None = None
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while before != (
                    now := [await wait_quiet(m, self._loop) for m in self._mailboxes.values()]
                ):
                    before = now
                    await self._command_router.tasks.wait_idle()
                    await self._effect_runner.tasks.wait_idle()
        except TimeoutError:
            log.warning("drain timed out: unfinished work is left to the next owner")
            return False
        await self._checkpoints.finish(self._committer.wait_settled)
        return True

    async def _reachable(self) -> bool:
        """Whether the server is connected, after a short wait for a restarting one."""
        for _ in range(RECONNECT_POLLS):
            if self._bus.connected:
                break
            await asyncio.sleep(RECONNECT_S / RECONNECT_POLLS)
        return self._bus.connected

    async def _shut_down(self) -> None:
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        await self._recovery.save(self.partitions.served)
        with suppress(TimeoutError):
            async with asyncio.timeout(SNAPSHOTS_S):
                await self._loader.tasks.wait_idle()
        await self.partitions.stop()
        for tasks in (self._loader.tasks, self._command_router.tasks, self._effect_runner.tasks):
            await tasks.cancel()

    def _start_actor(self, decider: Decider) -> None:
        mailbox = self._mailboxes[decider.family]
        actor = FamilyActor.start(decider, mailbox, self)
        self._actors[decider.family] = actor
        mailbox.attach(actor)

    async def _maintenance_loop(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_S)
            try:
                await self._maintain()
            except Exception:  # Without maintenance the watermark would stay where it is.
                log.exception("maintenance failed")

    async def _maintain(self) -> None:
        """Regain partitions whose consumer another node has reopened, save the watermark, evict
        idle entities. Runs every few seconds."""
        if self._bus.inbox.partitions_taken_over() & self.partitions.served:
            self.partitions.reacquire_all()
        if self.partitions.is_certain:
            self._requeue_withheld()
            await self._recovery.save(self.partitions.served)
        self._checkpoints.write_if_due(self._settings.uptime_s(), self._committer.wait_settled)
        before_ms = self.now_ms() - self._settings.passivate_after_ms
        for mailbox in self._mailboxes.values():
            mailbox.post(Passivate(before_ms))

    # --- partitions -----------------------------------------------------------------------------

    async def _on_gained(self, partitions: frozenset[int]) -> None:
        """Recover what the previous owner left, then accept commands. Once the new term has begun,
        no other node appends to the partitions, and the term's fact follows everything appended
        before, so a read after it is complete. Entities in memory may be outdated, because a late
        request may have loaded them while another node owned them."""
        await self._record_taken(await self._bus.journal.begin_terms(partitions))
        await self._release_entities(partitions)
        self.owned_partitions |= partitions
        await self._recovery.recover(partitions)
        kept = partitions & self.partitions.owned  # The others are given back after this.
        await self._bus.request_endpoint.serve_partitions(self.partitions.served | kept)
        await asyncio.gather(*(self._open(partition) for partition in kept))
        self._requeue_withheld()

    async def _record_taken(self, turns: Mapping[int, int]) -> None:
        """Commit that the terms have begun, waiting until the journal has room for the fact."""
        taken = PartitionsTaken(
            node=self.node,
            partitions=tuple(sorted(turns)),
            turns=tuple(turns[partition] for partition in sorted(turns)),
        )
        recording = asyncio.ensure_future(self._record_now(taken))
        try:
            while not (await asyncio.wait({recording}, timeout=RECORD_WARNING_S))[0]:
                pressure = self.pressure.value
                log.warning(
                    "partitions not served: the journal has no room", extra={"pressure": pressure}
                )
            recording.result()
        finally:
            recording.cancel()

    async def _open(self, partition: int) -> None:
        await self._bus.inbox.close(partition)  # A failed attempt may have opened it.
        await self._bus.inbox.open(partition, self._command_router.deliver)

    async def _on_lost(self, partitions: frozenset[int]) -> None:
        """Stop serving the partitions; returns when no commit decided here is in flight."""
        self._recovery.release(partitions)
        await self._bus.request_endpoint.serve_partitions(self.partitions.served - partitions)
        await asyncio.gather(*(self._bus.inbox.close(p) for p in partitions))
        await self._release_entities(partitions)
        self._requeue_withheld()

    def _on_newer_term(self) -> None:
        """React to an append that the server rejected because another node has a newer term."""
        self.partitions.reacquire_all()

    def _owns(self, key: str) -> bool:
        return self._bus.partition(key) in self.owned_partitions

    def acts_for(self, key: str) -> bool:
        """Whether this node owns the key now and so performs what follows from its facts. Any
        thread."""
        return self.partitions.is_certain and self._bus.partition(key) in self.owned_partitions

    def _is_busy(self, partition: int) -> bool:
        return self._effect_runner.is_busy(lambda key: self._bus.partition(key) == partition)

    async def _release_entities(self, partitions: frozenset[int]) -> None:
        def is_lost(key: str) -> bool:
            return self._bus.partition(key) in partitions

        self.owned_partitions -= partitions
        self.histories.drop_keys(is_lost)
        self._effect_runner.cancel_keys(is_lost)
        self._command_router.local_ask.cancel_keys(is_lost)
        others = self._deciders[1:]  # No other node writes this node's own entity.
        await asyncio.gather(*(self._release_family(decider.family, is_lost) for decider in others))
        # The next owner must find every decision made here in the journal.
        await self._committer.wait_idle()

    async def _release_family(self, family: str, is_lost: Callable[[str], bool]) -> None:
        done = self._releasing[family] = asyncio.Event()
        self._mailboxes[family].post(
            ReleaseEntities(is_lost, lambda: self._loop.call_soon(done.set))
        )
        await done.wait()

    def on_quarantined(self, entity: EntityId) -> None:
        """Fold an entity again, since a damaged message of it was set aside; on the loop."""
        self.histories.drop(entity.key)
        for mailbox in self._mailboxes.values() if self._owns(entity.key) else ():
            mailbox.post(ReloadBroken(entity.key, entity.family))

    # --- ActorContext ---------------------------------------------------------------------------

    def run_soon(self, call: Callable[[], None]) -> None:
        self._loop.call_soon(call)

    def next_message_id(self) -> str:
        return f"{self._settings.identity.epoch}.{next(self._numbers)}"

    def commit(self, commits: Sequence[Commit], completions: Completions) -> None:
        """Submit the commits of owned keys. A key of another node gets no fact from here. While
        ownership is uncertain the node also sends no replies: clients retry, and the inbox delivers
        its commands again."""
        is_certain, accepted = self.partitions.is_certain, []
        for commit in commits:
            if commit.entity.family != "node" and not self._owns(commit.entity.key):
                self._reject_unowned(commit)
            elif commit.entity.family != "node" and not is_certain:
                self._withheld.append(commit)
            else:
                accepted.append(commit)
        self._committer.submit(accepted, completions if is_certain else completions.only_unowned())

    def _reject_unowned(self, commit: Commit) -> None:
        """Undo a commit for an entity of another node, which a late request or reaction had loaded
        here."""
        key = commit.entity.key
        commit.mailbox.post(ReleaseEntities(lambda other: other == key, lambda: None))
        commit.mailbox.post(CommitResults([Conflict(commit)]))

    def _requeue_withheld(self) -> None:
        """Let the actor decide the withheld commands again, or release them to the next owner."""
        withheld, self._withheld = self._withheld, []
        for commit in withheld:
            commit.mailbox.post(CommitResults([Conflict(commit)]))

    def start_early(self, unit: UnitOfWork, mailbox: Mailbox) -> None:
        key = unit.entity.id.key
        if not self.acts_for(key):
            unit.hold_s = 0.0
            return
        self._effect_runner.start(key, unit.follows, unit.pop_effects())
        unit.begin_hold(partial(mailbox.post, CommitHeld(unit)))
        self.failpoints.hit("facts_held")

    def redirect(self, delivery: Delivery, verb: str) -> None:
        self._loop.call_soon(self._command_router.run_query, delivery, verb)

    def load(self, decider: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        self._loop.call_soon(partial(self._loader.load, decider, entity, mailbox, whole=whole))

    def catch_up(
        self, decider: Decider, entity: Entity, mailbox: Mailbox, *, skip_unreadable: bool
    ) -> None:
        known = entity.consumed_counts(decider)
        fetch = partial(self._loader.catch_up, skip_unreadable=skip_unreadable)
        self._loop.call_soon(fetch, decider, entity, mailbox, known)

    def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        self._loop.call_soon(self._loader.save, entity, schema, snapshot)

    def store_body(self, entity: Entity, pending: PendingCommand, mailbox: Mailbox) -> None:
        data = encode_json(pending.command.body)
        self._loop.call_soon(self._loader.store_body, data, entity, pending, mailbox)

    def resume_effects(
        self, key: str, sequence: int, effects: Sequence[Effect], hold: WatermarkHold
    ) -> None:
        self._loop.call_soon(self._effect_runner.start, key, sequence, effects)
        self._loop.call_soon(hold.release)

    def ensure_effects(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        self._loop.call_soon(self._effect_runner.ensure_started, key, sequence, effects)

    def quarantine(self, pending: PendingCommand, error: Exception) -> None:
        failure: CodedError = Failed("COMMAND_QUARANTINED", f"{pending.command.verb}: {error!r}")
        quarantine = self._command_router.quarantine
        self._loop.call_soon(quarantine, pending, failure, self.record_quarantine)

    def record_quarantine(
        self, pending: PendingCommand, error: CodedError, number: int | None
    ) -> None:
        """Record that a command was set aside."""
        command = pending.command
        fact = CommandQuarantined(
            node=self.node,
            verb=command.verb,
            key=command.key,
            command_id=command.id,
            error=ErrorObject(code=error.code, message=error.message),
            dead_letter=UNSET if number is None else number,
        )
        self.record(fact)

    async def _record_now(self, fact: Fact) -> None:
        await self.ask("node", self.node, RecordFact(fact), FactRecorded)

    def record(self, fact: Fact) -> None:
        """Commit a fact of the family ``node``."""
        command = Command(
            verb="record", key=self.node, id=self.next_message_id(), body=RecordFact(fact)
        )
        self._mailboxes["node"].post(LocalCommand(command))

    def actor_failed(self, decider: Decider) -> None:
        log.error("actor failed, starting a successor", extra={"family": decider.family})
        self.metrics.restarted(decider.family)
        if not self.draining:
            self._loop.call_soon(self._replace, decider)

    def _replace(self, decider: Decider) -> None:
        """Start a successor and reacquire the partitions, so that lost commands are delivered
        again."""
        self._start_actor(decider)
        if (is_lost := self._releasing.get(decider.family)) is not None:
            is_lost.set()  # The successor holds no entities.
        self.partitions.reacquire_all()

    @property
    def ask(self) -> AskActor:
        """``LocalAsk.ask``, for executors on the loop."""
        return self._command_router.local_ask.ask

    @property
    def verbs(self) -> frozenset[str]:
        """The verbs of commands and queries that this node serves to clients."""
        return self._command_router.verbs

    # --- what ops reads -------------------------------------------------------------------------

    @property
    def mailbox_depths(self) -> dict[str, int]:
        return {family: len(mailbox) for family, mailbox in self._mailboxes.items()}

    @property
    def entities_cached(self) -> dict[str, int]:
        return {family: len(mailbox.entities) for family, mailbox in self._mailboxes.items()}

    @property
    def actors_alive(self) -> dict[str, bool]:
        return {family: actor.is_alive() for family, actor in self._actors.items()}

    @property
    def pressure(self) -> Backpressure:
        return self._bus.journal.pressure
