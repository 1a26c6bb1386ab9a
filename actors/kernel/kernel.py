"""A node's kernel: actors, committer, partitions and doors, wired together on one bus.

It implements ``ActorContext``, the actors' view of the node. It refuses to own rules (concerns),
the wire (bus) and configuration (``ops``): everything it needs is handed to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import pykka
from msgspec import UNSET

from rookery.actors.kernel.actor import FamilyActor
from rookery.actors.kernel.command_router import CommandRouter, QueryHandler
from rookery.actors.kernel.committer import Commit, CommitResults, Committer
from rookery.actors.kernel.completions import Completions
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.effect_runner import EffectHandler, EffectRunner
from rookery.actors.kernel.entity import Entity, PendingCommand
from rookery.actors.kernel.fact_router import FactRouter
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.loader import EntityLoader
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import DrainActor, LocalCommand, Passivate, ReleaseEntities
from rookery.actors.kernel.metrics import KernelMetrics, NoMetrics
from rookery.actors.kernel.node_decider import FactRecorded, NodeDecider, RecordFact
from rookery.actors.kernel.partition_ownership import CLAIM_S, NodeIdentity, PartitionOwnership
from rookery.actors.kernel.recovery import PartitionRecovery
from rookery.actors.kernel.watermark import Watermark, WatermarkHold
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

__all__ = ["Kernel", "KernelSettings"]

log = logging.getLogger(__name__)

MAINTENANCE_S = 5.0
RECONNECT_S, RECONNECT_POLLS = 3.0, 30
"""How long a node that stops waits for its server, if that has gone."""
RECORD_WARNING_S = 5.0
"""After so long it is logged that the journal does not take what a node says of itself."""
SNAPSHOTS_S = 2.0
"""How long the last snapshots may take."""


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """What ``ops`` decides about a kernel."""

    identity: NodeIdentity
    now_ms: Callable[[], int]
    uptime_s: Callable[[], float]
    """Goes on while the machine sleeps; never set."""
    metrics: KernelMetrics = field(default_factory=NoMetrics)
    failpoints: Failpoints = field(default_factory=Failpoints)
    claim_s: int = CLAIM_S
    passivate_after_ms: int = 600_000
    drain_timeout_s: float = 10.0
    payload_bytes_max: int = 1 << 20


class Kernel:
    """Start it, and commands of this node's partitions are worked off until it is stopped."""

    def __init__(
        self,
        bus: Bus,
        loop: BusLoop,
        concerns: Sequence[Decider],
        settings: KernelSettings,
        *,
        performers: Mapping[type[Effect], EffectHandler],
        queries: Mapping[str, QueryHandler],
    ) -> None:
        self._bus, self._loop, self._settings = bus, loop, settings
        self.node = settings.identity.node
        self.now_ms, self.metrics = settings.now_ms, settings.metrics
        self.failpoints = settings.failpoints
        self.payload_bytes_max = settings.payload_bytes_max
        self._numbers = count(1)
        self._deciders: list[Decider] = [NodeDecider(), *concerns]
        self._mailboxes = {c.family: Mailbox() for c in self._deciders}
        self._cached_counts = dict.fromkeys(self._mailboxes, 0)
        self._actors: dict[str, pykka.ActorRef[FamilyActor]] = {}
        self._watermark = Watermark()
        reactions = FactRouter(self._deciders, self._mailboxes, self._watermark)
        self._loader = EntityLoader(bus, {c.family: c.codec for c in self._deciders}, reactions)
        self._effect_runner = EffectRunner(
            performers, self._watermark, self.failpoints, self.acts_for, self.metrics
        )
        self._command_router = CommandRouter(
            bus, self._deciders, self._mailboxes, queries, self.metrics, now_ms=self.now_ms
        )
        self._committer = Committer(
            bus.journal,
            reactions,
            self._effect_runner,
            self._watermark,
            tell=self._command_router.complete,
            observer=self.metrics,
            failpoints=self.failpoints,
            acts_for=self.acts_for,
            on_displaced=self._on_displaced,
        )
        self._recovery = PartitionRecovery(
            bus,
            self._deciders,
            self._mailboxes,
            reactions,
            self._watermark,
            certain=lambda: self.partitions.is_certain,
            on_displaced=self._on_displaced,
        )
        self.partitions = PartitionOwnership(
            bus.claims,
            settings.identity,
            on_gain=self._on_gained,
            on_loss=self._on_lost,
            on_expiry=bus.reset,
            uptime_s=settings.uptime_s,
            claim_s=settings.claim_s,
            busy=self._is_busy,
        )
        self._owned_partitions: frozenset[int] = frozenset()
        """Partitions that are served or being taken up: nothing is done for others."""
        self._withheld: list[Commit] = []
        self._releasing: dict[str, asyncio.Event] = {}
        self._maintenance: asyncio.Task[None] | None = None
        self.draining = False

    # --- life -----------------------------------------------------------------------------------

    def register_handlers(self, performers: Mapping[type[Effect], EffectHandler]) -> None:
        """Before ``start``: performers that ``ask`` this kernel's actors."""
        self._effect_runner.register(performers)

    def start(self) -> None:
        """Begin to serve; returns once this node has its share of the partitions."""
        for concern in self._deciders:
            self._start_actor(concern)
        self._loop.run(self._start())
        self.failpoints.arm()

    async def _start(self) -> None:
        await self._bus.request_endpoint.open(self._command_router.deliver)
        await self.partitions.start()
        self._maintenance = asyncio.get_running_loop().create_task(self._maintenance_loop())

    def stop(self, last: Fact | None = None) -> bool:
        """Take no more, finish what is under way, leave. ``False`` if time ran out: what was not
        finished is in the journal or still in the inbox, and the next owner goes on with it. No
        actor is left, whatever else could not be done."""
        self.draining = True
        with ExitStack() as ending:
            ending.callback(self._stop_actors)
            ending.callback(lambda: self._loop.run(self._shut_down()))
            self._loop.run(self._stop_intake())
            if last is not None:
                self.record(last)
            return self._loop.run(self._quiesce())

    def _stop_actors(self) -> None:
        for actor in self._actors.values():
            actor.stop(block=True, timeout=5.0)

    async def _stop_intake(self) -> None:
        await self.partitions.freeze()
        self._requeue_withheld()
        await self._bus.request_endpoint.close()
        await asyncio.gather(*(self._bus.inbox.close(p) for p in range(PARTITIONS)))

    async def _quiesce(self) -> bool:
        """Wait until nothing is under way: every actor was idle once, and since then none of them
        had anything to do. Without a server nothing ends, so there is nothing to wait for."""
        if not await self._reachable():
            log.warning(
                "stopping without a server; what is under way is taken up by the next owner"
            )
            return False
        before: list[int] | None = None
        try:
            async with asyncio.timeout(self._settings.drain_timeout_s):
                while before != (
                    now := [await self._wait_quiet(m) for m in self._mailboxes.values()]
                ):
                    before = now
                    await self._command_router.tasks.wait_idle()
                    await self._effect_runner.tasks.wait_idle()
        except TimeoutError:
            log.warning("stopping with work under way; it is taken up by the next owner")
            return False
        return True

    async def _reachable(self) -> bool:
        """A server that is just started again is waited for."""
        for _ in range(RECONNECT_POLLS):
            if self._bus.connected:
                break
            await asyncio.sleep(RECONNECT_S / RECONNECT_POLLS)
        return self._bus.connected

    async def _wait_quiet(self, mailbox: Mailbox) -> int:
        """Wait until the family's actor is idle; how much it has worked off by then."""
        quiet: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def say(taken: int) -> None:
            if not quiet.done():
                quiet.set_result(taken)

        mailbox.post(DrainActor(lambda taken: self._loop.call_soon(say, taken)))
        return await quiet

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

    def _start_actor(self, concern: Decider) -> None:
        mailbox = self._mailboxes[concern.family]
        actor = FamilyActor.start(concern, mailbox, self)
        self._actors[concern.family] = actor
        mailbox.attach(actor)

    async def _maintenance_loop(self) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_S)
            try:
                await self._maintain()
            except Exception:  # The next time may be better; without it the horizon stands still.
                log.exception("the house was not kept")

    async def _maintain(self) -> None:
        """Every few seconds: take back what another node opened that did not know yet that it had
        lost it, move the horizon, let go of idle entities."""
        if self._bus.inbox.partitions_taken_over() & self.partitions.served:
            self.partitions.reacquire_all()
        if self.partitions.is_certain:
            self._requeue_withheld()
            await self._recovery.save(self.partitions.served)
        before_ms = self.now_ms() - self._settings.passivate_after_ms
        for mailbox in self._mailboxes.values():
            mailbox.post(Passivate(before_ms))

    # --- partitions -----------------------------------------------------------------------------

    async def _on_gained(self, partitions: frozenset[int]) -> None:
        """Take up what the last owner left, then take commands. From the new turn on nobody else
        appends, and all that others appended comes before the fact that says so: what is read
        after it is whole. What we remember is out of date: a late request may have made us look
        at an entity while it was not ours."""
        await self._record_taken(await self._bus.journal.begin_terms(partitions))
        await self._release_entities(partitions)
        self._owned_partitions |= partitions
        await self._recovery.recover(partitions)
        if not partitions <= self.partitions.owned:
            raise Failed("CLAIM_LOST", "partitions were lost while they were taken up")
        await self._bus.request_endpoint.serve_partitions(self.partitions.served | partitions)
        await asyncio.gather(*(self._open(partition) for partition in partitions))
        self._requeue_withheld()

    async def _record_taken(self, turns: Mapping[int, int]) -> None:
        """Without room in the journal nothing can be served, and that is waited for."""
        taken = PartitionsTaken(
            node=self.node,
            partitions=tuple(sorted(turns)),
            turns=tuple(turns[partition] for partition in sorted(turns)),
        )
        said = asyncio.ensure_future(self.ask("node", self.node, RecordFact(taken), FactRecorded))
        try:
            while not (await asyncio.wait({said}, timeout=RECORD_WARNING_S))[0]:
                pressure = self.pressure.value
                log.warning("partitions wait for the journal", extra={"pressure": pressure})
            said.result()
        finally:
            said.cancel()

    async def _open(self, partition: int) -> None:
        await self._bus.inbox.close(partition)  # An attempt that failed may have opened it.
        await self._bus.inbox.open(partition, self._command_router.deliver)

    async def _on_lost(self, partitions: frozenset[int]) -> None:
        """Returns when nothing that was decided on what we knew is on its way any more."""
        self._recovery.release(partitions)
        await self._bus.request_endpoint.serve_partitions(self.partitions.served - partitions)
        await asyncio.gather(*(self._bus.inbox.close(p) for p in partitions))
        await self._release_entities(partitions)
        self._requeue_withheld()

    def _on_displaced(self) -> None:
        """The server takes what is appended in a partition of ours from another node."""
        self.partitions.reacquire_all()

    def _owns(self, key: str) -> bool:
        return self._bus.partition(key) in self._owned_partitions

    def acts_for(self, key: str) -> bool:
        """Whether what follows from the facts of a key is this node's to do at this moment; of any
        thread."""
        return self.partitions.is_certain and self._owns(key)

    def _is_busy(self, partition: int) -> bool:
        return self._effect_runner.is_busy(lambda key: self._bus.partition(key) == partition)

    async def _release_entities(self, partitions: frozenset[int]) -> None:
        def gone(key: str) -> bool:
            return self._bus.partition(key) in partitions

        self._owned_partitions -= partitions
        self._effect_runner.cancel_keys(gone)
        self._command_router.local_ask.cancel_keys(gone)
        others = self._deciders[1:]  # The node's own record is nobody else's.
        await asyncio.gather(*(self._release_family(concern.family, gone) for concern in others))
        await self._committer.wait_idle()  # The next owner is to find all that was decided here.

    async def _release_family(self, family: str, gone: Callable[[str], bool]) -> None:
        done = self._releasing[family] = asyncio.Event()
        self._mailboxes[family].post(ReleaseEntities(gone, lambda: self._loop.call_soon(done.set)))
        await done.wait()

    # --- what actors ask (Hub) ------------------------------------------------------------------

    def next_message_id(self) -> str:
        return f"{self._settings.identity.epoch}.{next(self._numbers)}"

    def commit(self, commits: Sequence[Commit], closing: Completions) -> None:
        self._loop.call_soon(self._submit, commits, closing)

    def _submit(self, commits: Sequence[Commit], closing: Completions) -> None:
        """For other nodes nothing is journaled but this node's own record. While somebody else may
        own what we serve, nothing is said either: the client asks again, and the inbox brings its
        command again."""
        certain, stands = self.partitions.is_certain, []
        for commit in commits:
            if commit.entity.family != "node" and not self._owns(commit.entity.key):
                self._reject_unowned(commit)
            elif commit.entity.family != "node" and not certain:
                self._withheld.append(commit)
            else:
                stands.append(commit)
        self._committer.submit(stands, closing if certain else closing.only_unowned())

    def _reject_unowned(self, commit: Commit) -> None:
        """A late request or reaction had its actor look at an entity that is another node's."""
        key = commit.entity.key
        commit.mailbox.post(ReleaseEntities(lambda other: other == key, _no_op))
        commit.mailbox.post(CommitResults([Conflict(commit)]))

    def _requeue_withheld(self) -> None:
        """What was withheld is decided again, by the actor or by the next owner."""
        withheld, self._withheld = self._withheld, []
        for commit in withheld:
            commit.mailbox.post(CommitResults([Conflict(commit)]))

    def redirect(self, delivery: Delivery, verb: str) -> None:
        self._loop.call_soon(self._command_router.run_query, delivery, verb)

    def load(self, concern: Decider, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        self._loop.call_soon(partial(self._loader.load, concern, entity, mailbox, whole=whole))

    def catch_up(
        self, concern: Decider, entity: Entity, mailbox: Mailbox, *, looking: bool
    ) -> None:
        known = entity.consumed_counts(concern)
        fetch = partial(self._loader.catch_up, looking=looking)
        self._loop.call_soon(fetch, concern, entity, mailbox, known)

    def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        self._loop.call_soon(self._loader.save, entity, schema, snapshot)

    def store_body(self, entity: Entity, work: PendingCommand, mailbox: Mailbox) -> None:
        data = encode_json(work.command.body)
        self._loop.call_soon(self._loader.store_body, data, entity, work, mailbox)

    def resume_effects(
        self, key: str, sequence: int, effects: Sequence[Effect], ticket: WatermarkHold
    ) -> None:
        self._loop.call_soon(self._effect_runner.start, key, sequence, effects)
        self._loop.call_soon(ticket.release)

    def ensure_effects(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        self._loop.call_soon(self._effect_runner.ensure_started, key, sequence, effects)

    def quarantine(self, work: PendingCommand, error: Exception) -> None:
        said: CodedError = Failed("COMMAND_QUARANTINED", f"{work.command.verb}: {error!r}")
        self._loop.call_soon(self._command_router.quarantine, work, said, self.record_quarantine)

    def record_quarantine(
        self, work: PendingCommand, error: CodedError, number: int | None
    ) -> None:
        """Put a quarantined command on record."""
        command = work.command
        fact = CommandQuarantined(
            node=self.node,
            verb=command.verb,
            key=command.key,
            command_id=command.id,
            error=ErrorObject(code=error.code, message=error.message),
            dead_letter=UNSET if number is None else number,
        )
        self.record(fact)

    def record(self, fact: Fact) -> None:
        """Put a fact of the family ``node`` on record."""
        command = Command(
            verb="record", key=self.node, id=self.next_message_id(), body=RecordFact(fact)
        )
        self._mailboxes["node"].post(LocalCommand(command))

    def actor_failed(self, concern: Decider) -> None:
        log.error("an actor failed; another takes its place", extra={"family": concern.family})
        self.metrics.restarted(concern.family)
        if not self.draining:
            self._loop.call_soon(self._replace, concern)

    def _replace(self, concern: Decider) -> None:
        """Start a successor and bring it again what the failed one had in hand."""
        self._start_actor(concern)
        if (gone := self._releasing.get(concern.family)) is not None:
            gone.set()  # It knows nothing yet.
        self.partitions.reacquire_all()

    def report_cached(self, family: str, entities: int) -> None:
        self._cached_counts[family] = entities

    @property
    def ask(self) -> AskActor:
        """For performers, on the loop: put something to an actor of this node."""
        return self._command_router.local_ask.ask

    @property
    def verbs(self) -> frozenset[str]:
        """What may be asked of this node."""
        return self._command_router.verbs

    # --- what whoever looks after the node asks --------------------------------------------------

    @property
    def mailbox_depths(self) -> dict[str, int]:
        return {family: len(mailbox) for family, mailbox in self._mailboxes.items()}

    @property
    def entities_cached(self) -> dict[str, int]:
        return dict(self._cached_counts)

    @property
    def actors_alive(self) -> dict[str, bool]:
        return {family: actor.is_alive() for family, actor in self._actors.items()}

    @property
    def pressure(self) -> Backpressure:
        return self._bus.journal.pressure


def _no_op() -> None:
    """Nobody waits for it."""
