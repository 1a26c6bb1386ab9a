"""A node's kernel: actors, committer, partitions and doors, wired together on one bus.

It implements ``Hub``, the actors' view of the node. It refuses to own rules (concerns), the wire
(bus) and configuration (``ops``): everything it needs is handed to it.
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
from rookery.actors.kernel.command_router import Query, Routing
from rookery.actors.kernel.committer import Commit, Committer, Outcomes
from rookery.actors.kernel.completions import Closing
from rookery.actors.kernel.decider import Concern, Effect
from rookery.actors.kernel.effect_runner import Effects, Performer
from rookery.actors.kernel.entity import Entity, Work
from rookery.actors.kernel.fact_router import Reactions
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.loader import Fetching
from rookery.actors.kernel.local_ask import Ask
from rookery.actors.kernel.mailbox import Mailbox
from rookery.actors.kernel.messages import Forget, Internal, Passivate, Quiesce
from rookery.actors.kernel.metrics import Observer, Unobserved
from rookery.actors.kernel.node_decider import NodesConcern, Record, Recorded
from rookery.actors.kernel.partition_ownership import CLAIM_S, Holder, Partitions
from rookery.actors.kernel.recovery import Takeover
from rookery.actors.kernel.watermark import Horizon, Ticket
from rookery.bus.ports import PARTITIONS, Bus, Conflicted, Delivery, Loop, Pressure, Snapshot
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import CommandQuarantined, PartitionsTaken
from rookery.schemas.run import ErrorObject

__all__ = ["Kernel", "Settings"]

log = logging.getLogger(__name__)

HOUSE_S = 5.0
RECONNECT_S, RECONNECT_LOOKS = 3.0, 30
"""How long a node that stops waits for its server, if that has gone."""
SAID_S = 5.0
"""After so long it is logged that the journal does not take what a node says of itself."""
SNAPSHOTS_S = 2.0
"""How long the last snapshots may take."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``ops`` decides about a kernel."""

    holder: Holder
    now_ms: Callable[[], int]
    uptime_s: Callable[[], float]
    """Goes on while the machine sleeps; never set."""
    observer: Observer = field(default_factory=Unobserved)
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
        loop: Loop,
        concerns: Sequence[Concern],
        settings: Settings,
        *,
        performers: Mapping[type[Effect], Performer],
        queries: Mapping[str, Query],
    ) -> None:
        self._bus, self._loop, self._settings = bus, loop, settings
        self.node = settings.holder.node
        self.now_ms, self.observer = settings.now_ms, settings.observer
        self.failpoints = settings.failpoints
        self.payload_bytes_max = settings.payload_bytes_max
        self._numbers = count(1)
        self._concerns: list[Concern] = [NodesConcern(), *concerns]
        self._mailboxes = {c.family: Mailbox() for c in self._concerns}
        self._cached = dict.fromkeys(self._mailboxes, 0)
        self._actors: dict[str, pykka.ActorRef[FamilyActor]] = {}
        self._horizon = Horizon()
        reactions = Reactions(self._concerns, self._mailboxes, self._horizon)
        self._fetching = Fetching(bus, {c.family: c.codec for c in self._concerns}, reactions)
        self._effects = Effects(performers, self._horizon, self.failpoints, self.acts_for)
        self._routing = Routing(
            bus, self._concerns, self._mailboxes, queries, self.observer, now_ms=self.now_ms
        )
        self._committer = Committer(
            bus.journal,
            reactions,
            self._effects,
            self._horizon,
            tell=self._routing.tell,
            observer=self.observer,
            failpoints=self.failpoints,
            acts_for=self.acts_for,
            on_displaced=self._on_displaced,
        )
        self._takeover = Takeover(
            bus,
            self._concerns,
            self._mailboxes,
            reactions,
            self._horizon,
            certain=lambda: self.partitions.certain,
            on_displaced=self._on_displaced,
        )
        self.partitions = Partitions(
            bus.claims,
            settings.holder,
            on_gain=self._gain,
            on_loss=self._lose,
            on_expiry=bus.reset,
            uptime_s=settings.uptime_s,
            claim_s=settings.claim_s,
            busy=self._is_busy,
        )
        self._ours: frozenset[int] = frozenset()
        """Partitions that are served or being taken up: nothing is done for others."""
        self._withheld: list[Commit] = []
        self._letting_go: dict[str, asyncio.Event] = {}
        self._housekeeping: asyncio.Task[None] | None = None
        self.draining = False

    # --- life -----------------------------------------------------------------------------------

    def learn(self, performers: Mapping[type[Effect], Performer]) -> None:
        """Before ``start``: performers that ``ask`` this kernel's actors."""
        self._effects.learn(performers)

    def start(self) -> None:
        """Begin to serve; returns once this node has its share of the partitions."""
        for concern in self._concerns:
            self._start_actor(concern)
        self._loop.run(self._start())
        self.failpoints.arm()

    async def _start(self) -> None:
        await self._bus.door.open(self._routing.deliver)
        await self.partitions.start()
        self._housekeeping = asyncio.get_running_loop().create_task(self._keep_house())

    def stop(self, last: Fact | None = None) -> bool:
        """Take no more, finish what is under way, leave. ``False`` if time ran out: what was not
        finished is in the journal or still in the inbox, and the next owner goes on with it. No
        actor is left, whatever else could not be done."""
        self.draining = True
        with ExitStack() as ending:
            ending.callback(self._stop_actors)
            ending.callback(lambda: self._loop.run(self._leave()))
            self._loop.run(self._close_doors())
            if last is not None:
                self.record(last)
            return self._loop.run(self._quiesce())

    def _stop_actors(self) -> None:
        for actor in self._actors.values():
            actor.stop(block=True, timeout=5.0)

    async def _close_doors(self) -> None:
        await self.partitions.stand_still()
        self._give_back()
        await self._bus.door.close()
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
                while before != (now := [await self._quiet(m) for m in self._mailboxes.values()]):
                    before = now
                    await self._routing.tasks.idle()
                    await self._effects.tasks.idle()
        except TimeoutError:
            log.warning("stopping with work under way; it is taken up by the next owner")
            return False
        return True

    async def _reachable(self) -> bool:
        """A server that is just started again is waited for."""
        for _ in range(RECONNECT_LOOKS):
            if self._bus.connected:
                break
            await asyncio.sleep(RECONNECT_S / RECONNECT_LOOKS)
        return self._bus.connected

    async def _quiet(self, mailbox: Mailbox) -> int:
        """Wait until the family's actor is idle; how much it has worked off by then."""
        quiet: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def say(taken: int) -> None:
            if not quiet.done():
                quiet.set_result(taken)

        mailbox.post(Quiesce(lambda taken: self._loop.post(say, taken)))
        return await quiet

    async def _leave(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.cancel()
            await asyncio.gather(self._housekeeping, return_exceptions=True)
        await self._takeover.save(self.partitions.served)
        with suppress(TimeoutError):
            async with asyncio.timeout(SNAPSHOTS_S):
                await self._fetching.tasks.idle()
        await self.partitions.stop()
        for tasks in (self._fetching.tasks, self._routing.tasks, self._effects.tasks):
            await tasks.cancel()

    def _start_actor(self, concern: Concern) -> None:
        mailbox = self._mailboxes[concern.family]
        actor = FamilyActor.start(concern, mailbox, self)
        self._actors[concern.family] = actor
        mailbox.attach(actor)

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSE_S)
            try:
                await self._tidy()
            except Exception:  # The next time may be better; without it the horizon stands still.
                log.exception("the house was not kept")

    async def _tidy(self) -> None:
        """Every few seconds: take back what another node opened that did not know yet that it had
        lost it, move the horizon, let go of idle entities."""
        if self._bus.inbox.displaced() & self.partitions.served:
            self.partitions.serve_again()
        if self.partitions.certain:
            self._give_back()
            await self._takeover.save(self.partitions.served)
        before_ms = self.now_ms() - self._settings.passivate_after_ms
        for mailbox in self._mailboxes.values():
            mailbox.post(Passivate(before_ms))

    # --- partitions -----------------------------------------------------------------------------

    async def _gain(self, partitions: frozenset[int]) -> None:
        """Take up what the last owner left, then take commands. From the new turn on nobody else
        appends, and all that others appended comes before the fact that says so: what is read
        after it is whole. What we remember is out of date: a late request may have made us look
        at an entity while it was not ours."""
        await self._say_taken(await self._bus.journal.take(partitions))
        await self._forget(partitions)
        self._ours |= partitions
        await self._takeover.resume(partitions)
        if not partitions <= self.partitions.owned:
            raise Failed("CLAIM_LOST", "partitions were lost while they were taken up")
        await self._bus.door.own(self.partitions.served | partitions)
        await asyncio.gather(*(self._open(partition) for partition in partitions))
        self._give_back()

    async def _say_taken(self, turns: Mapping[int, int]) -> None:
        """Without room in the journal nothing can be served, and that is waited for."""
        taken = PartitionsTaken(
            node=self.node,
            partitions=tuple(sorted(turns)),
            turns=tuple(turns[partition] for partition in sorted(turns)),
        )
        said = asyncio.ensure_future(self.ask("node", self.node, Record(taken), Recorded))
        try:
            while not (await asyncio.wait({said}, timeout=SAID_S))[0]:
                pressure = self.pressure.value
                log.warning("partitions wait for the journal", extra={"pressure": pressure})
            said.result()
        finally:
            said.cancel()

    async def _open(self, partition: int) -> None:
        await self._bus.inbox.close(partition)  # An attempt that failed may have opened it.
        await self._bus.inbox.open(partition, self._routing.deliver)

    async def _lose(self, partitions: frozenset[int]) -> None:
        """Returns when nothing that was decided on what we knew is on its way any more."""
        self._takeover.leave(partitions)
        await self._bus.door.own(self.partitions.served - partitions)
        await asyncio.gather(*(self._bus.inbox.close(p) for p in partitions))
        await self._forget(partitions)
        self._give_back()

    def _on_displaced(self) -> None:
        """The server takes what is appended in a partition of ours from another node."""
        self.partitions.serve_again()

    def _is_ours(self, key: str) -> bool:
        return self._bus.partition(key) in self._ours

    def acts_for(self, key: str) -> bool:
        """Whether what follows from the facts of a key is this node's to do at this moment; of any
        thread."""
        return self.partitions.certain and self._is_ours(key)

    def _is_busy(self, partition: int) -> bool:
        return self._effects.busy(lambda key: self._bus.partition(key) == partition)

    async def _forget(self, partitions: frozenset[int]) -> None:
        def gone(key: str) -> bool:
            return self._bus.partition(key) in partitions

        self._ours -= partitions
        self._effects.give_up(gone)
        self._routing.inside.give_up(gone)
        others = self._concerns[1:]  # The node's own record is nobody else's.
        await asyncio.gather(*(self._let_go(concern.family, gone) for concern in others))
        await self._committer.settled()  # The next owner is to find all that was decided here.

    async def _let_go(self, family: str, gone: Callable[[str], bool]) -> None:
        done = self._letting_go[family] = asyncio.Event()
        self._mailboxes[family].post(Forget(gone, lambda: self._loop.post(done.set)))
        await done.wait()

    # --- what actors ask (Hub) ------------------------------------------------------------------

    def next_message_id(self) -> str:
        return f"{self._settings.holder.epoch}.{next(self._numbers)}"

    def commit(self, commits: Sequence[Commit], closing: Closing) -> None:
        self._loop.post(self._accept, commits, closing)

    def _accept(self, commits: Sequence[Commit], closing: Closing) -> None:
        """For other nodes nothing is journaled but this node's own record. While somebody else may
        own what we serve, nothing is said either: the client asks again, and the inbox brings its
        command again."""
        certain, stands = self.partitions.certain, []
        for commit in commits:
            if commit.entity.family != "node" and not self._is_ours(commit.entity.key):
                self._disown(commit)
            elif commit.entity.family != "node" and not certain:
                self._withheld.append(commit)
            else:
                stands.append(commit)
        self._committer.accept(stands, closing if certain else closing.disowned())

    def _disown(self, commit: Commit) -> None:
        """A late request or reaction had its actor look at an entity that is another node's."""
        key = commit.entity.key
        commit.mailbox.post(Forget(lambda other: other == key, _nothing))
        commit.mailbox.post(Outcomes([Conflicted(commit)]))

    def _give_back(self) -> None:
        """What was withheld is decided again, by the actor or by the next owner."""
        withheld, self._withheld = self._withheld, []
        for commit in withheld:
            commit.mailbox.post(Outcomes([Conflicted(commit)]))

    def divert(self, delivery: Delivery, verb: str) -> None:
        self._loop.post(self._routing.query, delivery, verb)

    def load(self, concern: Concern, entity: Entity, mailbox: Mailbox, *, whole: bool) -> None:
        self._loop.post(partial(self._fetching.load, concern, entity, mailbox, whole=whole))

    def catch_up(
        self, concern: Concern, entity: Entity, mailbox: Mailbox, *, looking: bool
    ) -> None:
        known = entity.known(concern)
        fetch = partial(self._fetching.catch_up, looking=looking)
        self._loop.post(fetch, concern, entity, mailbox, known)

    def save(self, entity: EntityId, schema: int, snapshot: Snapshot) -> None:
        self._loop.post(self._fetching.save, entity, schema, snapshot)

    def keep(self, entity: Entity, work: Work, mailbox: Mailbox) -> None:
        data = encode_json(work.command.body)
        self._loop.post(self._fetching.keep, data, entity, work, mailbox)

    def perform(self, key: str, sequence: int, effects: Sequence[Effect], ticket: Ticket) -> None:
        self._loop.post(self._effects.start, key, sequence, effects)
        self._loop.post(ticket.close)

    def go_on(self, key: str, sequence: int, effects: Sequence[Effect]) -> None:
        self._loop.post(self._effects.go_on, key, sequence, effects)

    def quarantine(self, work: Work, error: Exception) -> None:
        said: CodedError = Failed("COMMAND_QUARANTINED", f"{work.command.verb}: {error!r}")
        self._loop.post(self._routing.quarantine, work, said, self.record_quarantine)

    def record_quarantine(self, work: Work, error: CodedError, number: int | None) -> None:
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
            verb="record", key=self.node, id=self.next_message_id(), body=Record(fact)
        )
        self._mailboxes["node"].post(Internal(command))

    def actor_failed(self, concern: Concern) -> None:
        log.error("an actor failed; another takes its place", extra={"family": concern.family})
        self.observer.restarted(concern.family)
        if not self.draining:
            self._loop.post(self._replace, concern)

    def _replace(self, concern: Concern) -> None:
        """Start a successor and bring it again what the failed one had in hand."""
        self._start_actor(concern)
        if (gone := self._letting_go.get(concern.family)) is not None:
            gone.set()  # It knows nothing yet.
        self.partitions.serve_again()

    def cached(self, family: str, entities: int) -> None:
        self._cached[family] = entities

    @property
    def ask(self) -> Ask:
        """For performers, on the loop: put something to an actor of this node."""
        return self._routing.inside.ask

    @property
    def verbs(self) -> frozenset[str]:
        """What may be asked of this node."""
        return self._routing.verbs

    # --- what whoever looks after the node asks --------------------------------------------------

    @property
    def mailbox_depths(self) -> dict[str, int]:
        return {family: len(mailbox) for family, mailbox in self._mailboxes.items()}

    @property
    def entities_cached(self) -> dict[str, int]:
        return dict(self._cached)

    @property
    def actors_alive(self) -> dict[str, bool]:
        return {family: actor.is_alive() for family, actor in self._actors.items()}

    @property
    def pressure(self) -> Pressure:
        return self._bus.journal.pressure


def _nothing() -> None:
    """Nobody waits for it."""
