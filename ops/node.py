"""A node: one process that hosts actors. Wires server, bus, kernel and concerns; owns no rule.

Without a URL it brings an embedded server of its own and takes it down again, after itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import version
from types import TracebackType
from typing import Any

import msgspec

from rookery.actors.admission.decider import AdmissionDecider
from rookery.actors.admission.executor import handlers
from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.admission.session_claims import ClaimRegistry
from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.kernel.decider import Decider
from rookery.actors.kernel.failpoints import Failpoints
from rookery.actors.kernel.kernel import Kernel, KernelSettings
from rookery.actors.kernel.partition_ownership import NodeIdentity
from rookery.actors.leases.decider import LeasesDecider
from rookery.actors.peers.decider import PeersDecider
from rookery.actors.projections.realm_projections import RealmProjections
from rookery.actors.projections.tools import ToolQueryHandler
from rookery.actors.surfaces.decider import SurfacesDecider
from rookery.actors.tools.authoring.loader import load_registry
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.turns.decider import TurnsDecider
from rookery.bus.client.client import Client
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.commands.micro_service import MicroServiceResponder
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.loop_thread import LoopThread
from rookery.bus.nats.connection import ApiError
from rookery.bus.ports import Backpressure
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import mismatches, streams_of
from rookery.bus.subjects import Subjects
from rookery.ops.approval_dispatchers import ApprovalDispatchers
from rookery.ops.background_tasks import BackgroundTask, BackgroundTasks
from rookery.ops.config import Config
from rookery.ops.doctor import durability_of, is_embedded
from rookery.ops.health import Probe
from rookery.ops.metrics import GaugeValue, NodeMetrics
from rookery.ops.micro_service import build_service
from rookery.ops.process_identity import (
    ProcessIdentity,
    is_dead,
    process_name,
    process_token,
    this_process,
)
from rookery.ops.run_services import RunServices, approval_settings
from rookery.ops.server_checks import existing_streams
from rookery.ops.server_supervisor import ServerSupervisor
from rookery.ops.server_url import find_server_url, store_of
from rookery.ops.stream_backlog import backlog_gauges
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import Started, Stopped
from rookery.schemas.limits import check_run_limits
from rookery.schemas.lists import RunState
from rookery.schemas.run import Language

__all__ = ["Node"]

log = logging.getLogger(__name__)

DRAIN_POLL_S = 1.0
CHECKPOINT_TIMEOUT_S = 2.0
"""How long the checkpoint of the views may take in the end; without it the next one reads more."""
PROBE_TIMEOUT_S = 2.0


class Node:
    """Start it and it serves its realm until it is stopped."""

    def __init__(
        self,
        config: Config,
        on_drain: Callable[[], None] = lambda: None,
        on_loss: Callable[[CodedError], None] = lambda _: None,
    ) -> None:
        """``on_drain``: somebody wants this node to leave; called once, on the bus's loop.
        ``on_loss``: its own server has ended for good; called once, on a thread of its own."""
        self._config, self._on_drain, self._on_loss = config, on_drain, on_loss
        self._clock = SystemClock()
        self.metrics = NodeMetrics(version("rookery"))
        self.name = config.node.name or process_name()
        self._server: ServerSupervisor | None = None
        self._loop: LoopThread
        self._bus: JetStreamBus | None = None
        self._kernel: Kernel | None = None
        self._projections: RealmProjections | None = None
        self._runs: RunServices | None = None
        self._dispatchers: ApprovalDispatchers | None = None
        self._background = BackgroundTasks()
        self._opened = ExitStack()
        self._last_fact: Stopped | None = None
        self._drained = True
        self.url = ""

    def start(self) -> None:
        """Serve; returns once this node has its share of the realm's partitions. Nothing is left
        of a start that fails."""
        with ExitStack() as opened:
            bus = self._open_bus(opened)
            self._open_kernel(bus, opened)
            self._opened = opened.pop_all()

    def stop(self, reason: str = "stopped") -> bool:
        """Drain and stop; ``False`` if work was left for the next node."""
        self._last_fact = Stopped(node=self.name, reason=reason)
        self._opened.close()
        return self._drained

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

    def _open_bus(self, opened: ExitStack) -> JetStreamBus:
        config = self._config
        url = find_server_url(config) if config.url else None
        if url is None:
            embedded = EmbeddedServer(store_of(config).path, sync=config.server.sync)
            self._server = ServerSupervisor(embedded, self._on_loss)
            self._server.start()
            opened.callback(self._server.stop)
            url = self._server.url
        self.url = url
        self._loop = LoopThread()
        opened.callback(self._loop.close)
        bus = JetStreamBus(
            url,
            realm=config.realm,
            credentials=config.server.credentials_file,
            sync=config.server.sync if self._server else "always",
        )
        self._loop.run(bus.start())
        self._bus = bus
        self._close_last(opened, bus.stop)
        return bus

    def _close_last(
        self, opened: ExitStack, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        opened.callback(lambda: self._loop.run(close()))

    def _open_kernel(self, bus: JetStreamBus, opened: ExitStack) -> None:
        durability = self._loop.run(self._durability(bus))
        here, self._load = this_process(), InFlightCounter()
        views = self._projections = RealmProjections(
            bus.journal, bus.checkpoints, self._load, self._clock.now_ms
        )
        self._close_last(opened, partial(_checkpoint_views, views))
        self._close_last(opened, self._background.stop)
        epoch = f"{self.name}.{entropy(6).hex()}"
        runs = self._runs = self._open_runs(bus, f"{epoch}{process_token()}", opened)
        ways = self._open_dispatchers(bus, opened)
        kernel = Kernel(
            bus,
            self._loop,
            self._deciders(runs),
            self._settings(here, epoch),
            effect_handlers=handlers(bus.request_endpoint, None if runs is None else runs.replies),
            queries={
                **views.queries,
                "tools": ToolQueryHandler(() if runs is None else runs.catalogue).handle,
                **({} if runs is None else runs.queries),
            },
        )
        if runs is not None:
            kernel.register_handlers(runs.connect(kernel.ask, kernel.acts_for, ways.dispatchers))
        self.metrics.add_source(self._gauges)
        self._kernel = kernel
        opened.callback(self._stop_kernel, kernel)
        kernel.start()
        watches: dict[str, BackgroundTask] = {
            "views": views.run,
            "drain": partial(self._poll_drain, bus),
        }
        if runs is not None:
            watches["approvers"] = runs.approvers.run
        self._loop.run(self._background.start(watches))
        discovery = self._discovery(bus, kernel)
        self._close_last(opened, discovery.close)
        self._loop.run(discovery.open())
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

    def _deciders(self, runs: RunServices | None) -> list[Decider]:
        quotas = self._config.quotas
        admission = AdmissionDecider(
            queued_max=quotas.queue_length_max,
            in_flight_max=quotas.runs_in_flight_max,
            realm_load=self._load,
            claims=ClaimRegistry(),
            driven=runs is not None,
            judge=check_run_limits if runs is None else runs.validate_request,
        )
        of_runs: Sequence[Decider]
        if runs is None:
            approvals = approval_settings(self._config.realm, self._config.approvals)
            of_runs = (TurnsDecider(), ApprovalsDecider(approvals, calls=False))
        else:
            of_runs = runs.deciders
        return [admission, *of_runs, SurfacesDecider(), LeasesDecider(), PeersDecider()]

    def _settings(self, here: ProcessIdentity, epoch: str) -> KernelSettings:
        config = self._config
        return KernelSettings(
            identity=NodeIdentity(self.name, epoch, msgspec.json.encode(here), is_dead),
            now_ms=self._clock.now_ms,
            uptime_s=self._clock.uptime_s,
            metrics=self.metrics,
            failpoints=Failpoints(os.environ.get("ROOKERY_FAILPOINT", "")),
            claim_s=config.node.claim_s,
            passivate_after_ms=int(config.node.passivate_after_s * 1000),
            drain_timeout_s=config.node.drain_timeout_s,
            payload_bytes_max=config.limits.payload_bytes_max,
        )

    def _discovery(self, bus: JetStreamBus, kernel: Kernel) -> MicroServiceResponder:
        now_ms = self._clock.now_ms()
        service = build_service(
            self.name, version("rookery"), kernel.verbs, self.metrics, now_ms=now_ms
        )
        return MicroServiceResponder(bus.connection, Subjects(self._config.realm), service)

    def _stop_kernel(self, kernel: Kernel) -> None:
        """With a last word, unless it never came to serve."""
        try:
            self._drained = kernel.stop(self._last_fact)
        finally:
            self._kernel = None

    def _open_dispatchers(self, bus: JetStreamBus, opened: ExitStack) -> ApprovalDispatchers:
        """To approvers, and back from them."""
        config = self._config
        ways = self._dispatchers = ApprovalDispatchers(config.approvals, bus, self._clock.now_ms)
        credentials = config.server.credentials_file
        client = Client(self.url, realm=config.realm, credentials=credentials)
        ways.open(self._loop, client, opened)
        return ways

    def _open_runs(self, bus: JetStreamBus, epoch: str, opened: ExitStack) -> RunServices | None:
        """What drives runs here, if anything does."""
        config = self._config
        if config.node.driver == "outside":
            return None
        registry = load_registry(config.node.tools) if config.node.tools else ToolRegistry()
        opening = RunServices.open(
            bus,
            self._loop,
            node=self.name,
            epoch=epoch,
            limits=config.limits,
            registry=registry,
            surfaces=config.node.workers,
            approvals=config.approvals,
            opened=opened,
        )
        return self._loop.run(opening)

    async def _poll_drain(self, bus: JetStreamBus) -> None:
        """A claim is the request: it is heard by a node that cannot be asked, and forgotten with
        whoever made it."""
        while True:
            await asyncio.sleep(DRAIN_POLL_S)
            try:
                if await bus.claims.list(f"drain.{self.name}"):
                    self._on_drain()
                    return
            except Failed as error:
                log.info("whether to drain is not known", extra={"code": error.code})

    async def _durability(self, bus: JetStreamBus) -> str:
        """What an ack of this server is worth; refuses to serve where it may be worth nothing."""
        stream = Subjects(self._config.realm).journal_stream
        info = await bus.connection.api(f"STREAM.INFO.{stream}")
        return durability_of(
            self._config,
            embedded=self._server is not None or is_embedded(self._config),
            replicas=info["config"].get("num_replicas", 1),
        )

    @property
    def callback_url(self) -> str:
        """Where a webhook's receiver answers; empty if nowhere."""
        return "" if self._dispatchers is None else self._dispatchers.callback_url

    @property
    def drain_s(self) -> float:
        """How long it finishes what is under way before it leaves the rest to the next node."""
        return self._config.node.drain_timeout_s

    def running(self) -> list[str]:
        """The runs that are under way; none once it has stopped."""
        if self._projections is None or self._kernel is None:
            return []
        listed = self._projections.runs.list(RunsQuery(status=RunState.RUNNING))
        return [run.run_id for run in self._loop.run(listed, timeout_s=PROBE_TIMEOUT_S).runs]

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
        probes = [Probe("loop", ok=self._loop_alive())]
        for family, alive in kernel.actors_alive.items():
            probes.append(Probe(f"actor {family}", ok=alive))
        return probes

    def ready(self) -> list[Probe]:
        """What must hold for work to be sent here."""
        kernel, bus = self._kernel, self._bus
        if kernel is None or bus is None:
            return [Probe("started", ok=False, detail="the node is not running")]
        served = len(kernel.partitions.served)
        full = kernel.pressure is Backpressure.FULL
        return [
            Probe("server", ok=bus.connected),
            self._streams_ok(bus),
            Probe("journal", ok=not full, detail="out of space" if full else ""),
            Probe("partitions", ok=served > 0, detail=f"{served} served"),
            Probe("draining", ok=not kernel.draining),
            self._background_ok(),
            *self._approvers_ok(),
        ]

    def _background_ok(self) -> Probe:
        """Else lists, quotas or drains are not what they should be."""
        failing = self._background.failing
        detail = "; ".join(f"{name}: {why}" for name, why in failing.items())
        return Probe("watches", ok=not failing, detail=detail)

    def _approvers_ok(self) -> list[Probe]:
        """Without them no signed answer counts here."""
        if self._runs is None:
            return []
        blind = self._runs.approvers.unavailable_reason
        return [Probe("approvers", ok=not blind, detail=blind)]

    def _streams_ok(self, bus: JetStreamBus) -> Probe:
        """Somebody may have edited or removed a stream since we made or checked it."""
        specs = streams_of(Subjects(self._config.realm))
        try:
            found = self._loop.run(
                existing_streams(bus.connection, specs), timeout_s=PROBE_TIMEOUT_S
            )
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

    def _loop_alive(self) -> bool:
        try:
            self._loop.run(_no_operation(), timeout_s=PROBE_TIMEOUT_S)
        except TimeoutError:
            return False
        return True

    def _gauges(self) -> Iterable[GaugeValue]:
        kernel, bus = self._kernel, self._bus
        if kernel is None or bus is None:
            return
        for family, depth in kernel.mailbox_depths.items():
            yield GaugeValue("rookery_mailbox_depth", depth, family)
        for family, cached in kernel.entities_cached.items():
            yield GaugeValue("rookery_entities_cached", cached, family)
        yield GaugeValue("rookery_run_in_flight", self._load.total)
        yield GaugeValue("rookery_partition_owned", len(kernel.partitions.served))
        yield GaugeValue("rookery_journal_lost_ack_total", bus.journal.counters.lost_acks)
        if self._server is not None:
            yield GaugeValue("rookery_server_restart_total", self._server.restarts)
        yield from self._backlog(bus)

    def _backlog(self, bus: JetStreamBus) -> list[GaugeValue]:
        readings = backlog_gauges(bus.connection, Subjects(self._config.realm))
        try:
            return self._loop.run(readings, timeout_s=PROBE_TIMEOUT_S)
        except TimeoutError:
            return []


async def _checkpoint_views(views: RealmProjections) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(CHECKPOINT_TIMEOUT_S):
            await views.checkpoint()


async def _no_operation() -> None:
    """Proof that the loop takes up work."""
