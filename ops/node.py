"""A node: one process that hosts actors. Wires server, bus, kernel and concerns; owns no rule.

Without a URL it brings an embedded server of its own and takes it down again, after itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from importlib.metadata import version
from types import TracebackType
from typing import Any

import msgspec

from rookery.actors.admission.claim import ClaimRegistry
from rookery.actors.admission.concern import AdmissionConcern
from rookery.actors.admission.load import RealmLoad
from rookery.actors.admission.telling import performers
from rookery.actors.approvals.concern import ApprovalsConcern
from rookery.actors.kernel.concern import Concern
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.kernel import Kernel, Settings
from rookery.actors.kernel.partitions import Holder
from rookery.actors.leases.concern import LeasesConcern
from rookery.actors.peers.concern import PeersConcern
from rookery.actors.surfaces.concern import SurfacesConcern
from rookery.actors.tools.loading import load_registry
from rookery.actors.tools.registry import ToolRegistry
from rookery.actors.turns.concern import TurnsConcern
from rookery.actors.views.realm import RealmViews
from rookery.actors.views.tools import ToolsView
from rookery.bus.client import Client
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.connection import ApiError
from rookery.bus.discovery import Discovery
from rookery.bus.jetstream import JetStreamBus
from rookery.bus.loop import LoopThread
from rookery.bus.ports import Pressure
from rookery.bus.server import EmbeddedServer
from rookery.bus.streams import mismatches, streams_of
from rookery.bus.subjects import Subjects
from rookery.ops.approvals import ApprovalWays
from rookery.ops.backlog import backlog_readings
from rookery.ops.config import Config
from rookery.ops.doctor import durability_of, is_embedded
from rookery.ops.health import Probe
from rookery.ops.metrics import Metrics, Reading
from rookery.ops.presence import Presence, is_dead, presence_here, process_name
from rookery.ops.reach import find_url, store_of
from rookery.ops.runs import Runs, approval_settings
from rookery.ops.server_checks import streams_there
from rookery.ops.service import service_of
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import Started, Stopped
from rookery.schemas.limits import check_run_limits
from rookery.schemas.listing import RunState
from rookery.schemas.run import Language

__all__ = ["Node"]

log = logging.getLogger(__name__)

DRAIN_S = 1.0
VIEWS_S = 2.0
"""How long the checkpoint of the views may take in the end; without it the next one reads more."""
PROBE_S = 2.0


class Node:
    """Start it and it serves its realm until it is stopped."""

    def __init__(self, config: Config, on_drain: Callable[[], None] = lambda: None) -> None:
        """``on_drain``: somebody wants this node to leave; called once, on the bus's loop."""
        self._config, self._on_drain = config, on_drain
        self._clock = SystemClock()
        self.metrics = Metrics(version("rookery"))
        self.name = config.node.name or process_name()
        self._server: EmbeddedServer | None = None
        self._loop = LoopThread()
        self._bus: JetStreamBus | None = None
        self._kernel: Kernel | None = None
        self._runs: Runs | None = None
        self._ways: ApprovalWays | None = None
        self._views: RealmViews | None = None
        self._discovery: Discovery | None = None
        self._watching: list[asyncio.Task[None]] = []
        self.url = ""

    def start(self) -> None:
        """Serve; returns once this node has its share of the realm's partitions."""
        try:
            self._start_bus()
            self._start_kernel()
        except BaseException:
            self._tear_down()
            raise

    def stop(self, reason: str = "stopped") -> bool:
        """Drain and stop; ``False`` if work was left for the next node."""
        kernel = self._kernel
        try:
            if self._discovery is not None:
                self._loop.run(self._discovery.close())
            return kernel is None or kernel.stop(Stopped(node=self.name, reason=reason))
        finally:
            self._kernel = None
            if self._runs is not None:
                self._runs.close()
                self._runs = None
            self._tear_down()

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(kind.__name__ if kind else "stopped")

    def _start_bus(self) -> None:
        config = self._config
        url = find_url(config) if config.url else None
        if url is None:
            self._server = EmbeddedServer(store_of(config).path, sync=config.server.sync)
            self._server.start()
            url = self._server.url
        self.url = url
        bus = JetStreamBus(
            url,
            realm=config.realm,
            credentials=config.server.credentials_file,
            sync=config.server.sync if self._server else "always",
        )
        self._loop.run(bus.start())
        self._bus = bus

    def _start_kernel(self) -> None:
        bus = self._bus
        assert bus is not None
        durability = self._loop.run(self._durability(bus))
        here, self._load = presence_here(), RealmLoad()
        views = self._views = RealmViews(bus.journal, bus.shelf, self._load, self._clock.now_ms)
        epoch = f"{self.name}.{entropy(6).hex()}"
        runs = self._runs = self._open_runs(bus, epoch)
        ways = self._open_ways(bus)
        kernel = self._kernel = Kernel(
            bus,
            self._loop,
            self._concerns(runs),
            self._settings(here, epoch),
            performers=performers(bus.door, None if runs is None else runs.results),
            queries={
                **views.queries,
                "tools": ToolsView(() if runs is None else runs.visible).answer,
                **({} if runs is None else runs.queries),
            },
        )
        if runs is not None:
            kernel.learn(runs.bind(kernel.ask, ways.dispatchers))
        self.metrics.pull_from(self._readings)
        kernel.start()
        watches = [views.keep_up()]
        if runs is not None:
            watches.append(runs.approvers.keep_up())
        self._loop.run(self._watch(*watches, self._watch_drain(bus)))
        self._loop.run(self._be_found(bus, kernel))
        kernel.record(
            Started(
                node=self.name,
                version=version("rookery"),
                host=here.host,
                pid=here.pid,
                durability=durability,
                builds={} if runs is None else runs.builds,
            )
        )

    def _concerns(self, runs: Runs | None) -> list[Concern]:
        quotas = self._config.quotas
        admission = AdmissionConcern(
            queued_max=quotas.queue_length_max,
            in_flight_max=quotas.runs_in_flight_max,
            realm_load=self._load,
            claims=ClaimRegistry(),
            driven=runs is not None,
            judge=check_run_limits if runs is None else runs.judge,
        )
        of_runs: Sequence[Concern]
        if runs is None:
            approvals = approval_settings(self._config.realm, self._config.approvals)
            of_runs = (TurnsConcern(), ApprovalsConcern(approvals, calls=False))
        else:
            of_runs = runs.concerns
        return [admission, *of_runs, SurfacesConcern(), LeasesConcern(), PeersConcern()]

    def _settings(self, here: Presence, epoch: str) -> Settings:
        config = self._config
        return Settings(
            holder=Holder(self.name, msgspec.json.encode(here), is_dead),
            epoch=epoch,
            now_ms=self._clock.now_ms,
            uptime_s=self._clock.uptime_s,
            observer=self.metrics,
            failpoints=Failpoints(os.environ.get("ROOKERY_FAILPOINT", "")),
            passivate_after_ms=int(config.node.passivate_after_s * 1000),
            drain_timeout_s=config.node.drain_timeout_s,
            payload_bytes_max=config.limits.payload_bytes_max,
        )

    async def _be_found(self, bus: JetStreamBus, kernel: Kernel) -> None:
        now_ms = self._clock.now_ms()
        service = service_of(
            self.name, version("rookery"), kernel.verbs, self.metrics, now_ms=now_ms
        )
        subjects = Subjects(self._config.realm)
        self._discovery = Discovery(bus.connection, subjects, service)
        await self._discovery.open()

    def _open_ways(self, bus: JetStreamBus) -> ApprovalWays:
        """To approvers, and back from them."""
        config = self._config
        ways = self._ways = ApprovalWays(config.approvals, bus, self._clock.now_ms)
        credentials = config.server.credentials_file
        ways.open(self._loop, Client(self.url, realm=config.realm, credentials=credentials))
        return ways

    def _open_runs(self, bus: JetStreamBus, epoch: str) -> Runs | None:
        """What drives runs here, if anything does."""
        config = self._config
        if config.node.driver == "outside":
            return None
        registry = load_registry(config.node.tools) if config.node.tools else ToolRegistry()
        opening = Runs.open(
            bus,
            self._loop,
            node=self.name,
            epoch=epoch,
            limits=config.limits,
            registry=registry,
            surfaces=config.node.workers,
            approvals=config.approvals,
        )
        return self._loop.run(opening)

    async def _watch(self, *watches: Coroutine[Any, Any, None]) -> None:
        loop = asyncio.get_running_loop()
        self._watching = [loop.create_task(watch) for watch in watches]

    async def _watch_drain(self, bus: JetStreamBus) -> None:
        """A claim is the request: it is heard by a node that cannot be asked, and forgotten with
        whoever made it."""
        while True:
            await asyncio.sleep(DRAIN_S)
            try:
                if await bus.claims.list(f"drain.{self.name}"):
                    self._on_drain()
                    return
            except Failed as error:
                log.info("whether to drain is not known", extra={"code": error.code})

    async def _watch_no_more(self) -> None:
        for watch in self._watching:
            watch.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _leave_views(self) -> None:
        if self._views is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(VIEWS_S):
                    await self._views.leave()
            self._views = None

    async def _durability(self, bus: JetStreamBus) -> str:
        """What an ack of this server is worth; refuses to serve where it may be worth nothing."""
        stream = Subjects(self._config.realm).journal_stream
        info = await bus.connection.api(f"STREAM.INFO.{stream}")
        return durability_of(
            self._config,
            embedded=self._server is not None or is_embedded(self._config),
            replicas=info["config"].get("num_replicas", 1),
        )

    def _tear_down(self) -> None:
        if self._ways is not None:
            self._ways.close(self._loop)
            self._ways = None
        if self._bus is not None:
            self._loop.run(self._watch_no_more())
            self._loop.run(self._leave_views())
            self._loop.run(self._bus.stop())
            self._bus = None
        self._loop.close()
        if self._server is not None:
            self._server.stop()
            self._server = None

    @property
    def callback_url(self) -> str:
        """Where a webhook's receiver answers; empty if nowhere."""
        return "" if self._ways is None else self._ways.callback_url

    @property
    def drain_s(self) -> float:
        """How long it finishes what is under way before it leaves the rest to the next node."""
        return self._config.node.drain_timeout_s

    def running(self) -> list[str]:
        """The runs that are under way; none once it has stopped."""
        if self._views is None:
            return []
        listed = self._views.runs.list(RunsQuery(status=RunState.RUNNING))
        return [run.run_id for run in self._loop.run(listed, timeout_s=PROBE_S).runs]

    @property
    def languages(self) -> frozenset[Language]:
        """What programs can be written in here."""
        return frozenset(() if self._runs is None else self._runs.builds)

    # --- for whoever looks after it -------------------------------------------------------------

    def alive(self) -> list[Probe]:
        """What a restart would mend."""
        kernel = self._kernel
        if kernel is None:
            return [Probe("started", ok=False, detail="the node is not running")]
        probes = [Probe("loop", ok=self._loop_turns())]
        for family, alive in kernel.actors_alive.items():
            probes.append(Probe(f"actor {family}", ok=alive))
        return probes

    def ready(self) -> list[Probe]:
        """What must hold for work to be sent here."""
        kernel, bus = self._kernel, self._bus
        if kernel is None or bus is None:
            return [Probe("started", ok=False, detail="the node is not running")]
        served = len(kernel.partitions.served)
        full = kernel.pressure is Pressure.FULL
        return [
            Probe("server", ok=bus.connected),
            self._streams_right(bus),
            Probe("journal", ok=not full, detail="out of space" if full else ""),
            Probe("partitions", ok=served > 0, detail=f"{served} served"),
            Probe("draining", ok=not kernel.draining),
        ]

    def _streams_right(self, bus: JetStreamBus) -> Probe:
        """Somebody may have edited or removed a stream since we made or checked it."""
        specs = streams_of(Subjects(self._config.realm))
        try:
            found = self._loop.run(streams_there(bus.connection, specs), timeout_s=PROBE_S)
        except (CodedError, ApiError, TimeoutError) as error:
            return Probe("streams", ok=False, detail=type(error).__name__)
        wrong = [
            f"{spec.name}: {what}"
            for spec in specs
            for what in (
                mismatches(spec, found[spec.name]["config"])
                if spec.name in found
                else ["is missing"]
            )
        ]
        return Probe("streams", ok=not wrong, detail="; ".join(wrong))

    def _loop_turns(self) -> bool:
        try:
            self._loop.run(_nothing(), timeout_s=PROBE_S)
        except TimeoutError:
            return False
        return True

    def _readings(self) -> Iterable[Reading]:
        kernel, bus = self._kernel, self._bus
        if kernel is None or bus is None:
            return
        for family, depth in kernel.mailbox_depths.items():
            yield Reading("rookery_mailbox_depth", depth, family)
        for family, cached in kernel.entities_cached.items():
            yield Reading("rookery_entities_cached", cached, family)
        yield Reading("rookery_run_in_flight", self._load.total)
        yield Reading("rookery_partition_owned", len(kernel.partitions.served))
        yield Reading("rookery_journal_lost_ack_total", bus.journal.counters.lost_acks)
        yield from self._backlog(bus)

    def _backlog(self, bus: JetStreamBus) -> list[Reading]:
        readings = backlog_readings(bus.connection, Subjects(self._config.realm))
        try:
            return self._loop.run(readings, timeout_s=PROBE_S)
        except TimeoutError:
            return []


async def _nothing() -> None:
    """Proof that the loop takes up work."""
