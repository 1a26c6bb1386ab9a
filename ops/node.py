"""A process that hosts actors: a node, or one of several processes of it (``ops/processes``).

This module wires server, bus, kernel and executors. Without a configured URL the node starts an
embedded server and stops it when it stops itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from rookery.actors import DECIDERS, DeciderHost
from rookery.actors.admission import AdmissionDecider, InFlightCounter, InFlightShare, RunReplies
from rookery.actors.approvals import ApprovalsDecider
from rookery.actors.execution import ResultSender
from rookery.actors.execution.agents import open_models
from rookery.actors.execution.queries import MessageQuarantine
from rookery.actors.kernel import Decider
from rookery.actors.kernel.executors import Failpoints
from rookery.actors.kernel.runtime import Kernel, KernelSettings, NodeDecider, NodeIdentity
from rookery.actors.projections import RealmProjections, ToolQueryHandler
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.event_loop import LoopThread
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import QuarantinedMessage
from rookery.bus.micro_service import MicroServiceResponder
from rookery.bus.ports import PARTITIONS, TaskSet
from rookery.bus.realm_upgrade import upgrade_at_start
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects, partition_of
from rookery.ops.approval_dispatchers import ApprovalDispatchers, open_callback
from rookery.ops.background_tasks import BackgroundTask, BackgroundTasks, poll_drain
from rookery.ops.config import Config
from rookery.ops.doctor import read_durability
from rookery.ops.gateways import AgentsProtocol
from rookery.ops.http_server import Page, Probe
from rookery.ops.keys import ConfiguredKeys, NodeKey, NodeSecrets
from rookery.ops.leases import LeaseServices
from rookery.ops.metrics import GaugeValue, NodeMetrics
from rookery.ops.node_resources import NodeResources
from rookery.ops.node_tools import StartStopped, discover_workers, run_unless_stopped
from rookery.ops.probes import NOT_RUNNING, PROBE_TIMEOUT_S, NodeProbes, build_service
from rookery.ops.process_identity import (
    ProcessIdentity,
    is_dead,
    process_name,
    process_token,
    this_process,
)
from rookery.ops.processes import WHOLE_NODE, ProcessShare
from rookery.ops.run_environment import model_budgets
from rookery.ops.run_services import RunServices, approval_settings
from rookery.ops.server import ConfiguredServer, RealmServer, ServerSupervisor
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import Started, Stopped
from rookery.schemas.replies import RunState
from rookery.schemas.run import Language, check_run_limits

__all__ = ["Node"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_READABLE_DAMAGE = "CHAIN_BROKEN"
"""Lists contain the facts of a message with this damage."""
CHECKPOINT_TIMEOUT_S = 2.0
"""For the projections' last checkpoint; without it, the next node reads more of the journal."""


class Node:
    """Serves its realm from ``start`` to ``stop``."""

    def __init__(
        self,
        config: Config,
        on_drain: Callable[[], None] = lambda: None,
        on_loss: Callable[[CodedError], None] = lambda _: None,
        share: ProcessShare = WHOLE_NODE,
        stopping: threading.Event | None = None,
    ) -> None:
        """``on_drain``: called once, on the bus's loop, when an operator drains this node.
        ``on_loss``: called once, on a thread of its own, when the node's own server cannot be
        restarted. ``share``: which of the node's processes this is. ``stopping``: ends a start
        that waits for workers."""
        self._config, self._on_drain, self._on_loss = config, on_drain, on_loss
        self._stopping = stopping or threading.Event()
        self._share, self._node_name = share, config.node.name or process_name()
        self._clock = SystemClock()
        self.metrics = NodeMetrics(version("rookery"))
        self.name = share.name_of(self._node_name)
        """The name of this process in claims and facts."""
        self._server: ServerSupervisor | None = None
        self._loop: LoopThread
        self._projections: RealmProjections
        self._key: NodeKey
        self._kernel: Kernel | None = None
        self._in_flight = self._create_in_flight_counter()
        self._runs: RunServices | None = None
        self._background = BackgroundTasks()
        self._rebuilds = TaskSet()
        self._probes: NodeProbes | None = None
        """Set while the kernel runs."""
        self._opened = ExitStack()
        self._last_fact: Stopped | None = None
        self._drained = True
        self._realm_server: RealmServer
        self.url = self.callback_url = ""
        """Of the server, and where a webhook's receiver sends its answers, if anywhere."""

    def start(self) -> bool:
        """Return once this node owns its share of the realm's partitions; ``False`` if it was
        stopped before. A start that fails closes everything it opened."""
        with suppress(StartStopped), ExitStack() as opened:
            self._open_kernel(self._open_bus(opened), opened)
            self._add_workers()
            self._opened = opened.pop_all()
            return True
        return False

    def stop(self, reason: str = "stopped") -> bool:
        """Drain and stop; ``False`` if the next node has to finish some of the work."""
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

    # --- start and stop ---------------------------------------------------------------------------

    def _open_bus(self, opened: ExitStack) -> JetStreamBus:
        config = self._config
        server = self._share.server or (
            ConfiguredServer(config).find(Role.NODE) if config.url else None
        )
        if server is None:
            self._server = ServerSupervisor(ConfiguredServer(config).embedded(), self._on_loss)
            self._server.start()
            opened.callback(self._server.stop)
            server = self._server.realm_server
        self._realm_server, self.url = server, server.url
        self._loop = LoopThread()
        opened.callback(self._loop.close)
        bus = self._loop.run(self._start_bus())
        self._close_on_loop(opened, bus.stop)
        return bus

    async def _start_bus(self) -> JetStreamBus:
        """A started bus; a realm of an older format is upgraded first."""
        bus = self._create_bus()
        try:
            await bus.start()
        except Failed as refusal:
            if refusal.code != "REALM_UPGRADE_REQUIRED":
                raise
            access = self._realm_server.access
            await upgrade_at_start(self.url, access, self._config.realm, is_dead)
            bus = self._create_bus()
            await bus.start()
        return bus

    def _create_bus(self) -> JetStreamBus:
        server = self._config.server
        return JetStreamBus(
            self.url,
            self._realm_server.access,
            realm=self._config.realm,
            issuer=self._realm_server.issuer,
            replicas=server.replicas,
            sync=server.sync if self._server or self._share.is_embedded else "always",
        )

    def _close_on_loop(
        self, opened: ExitStack, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        opened.callback(lambda: self._loop.run(close()))

    def _open_kernel(self, bus: JetStreamBus, opened: ExitStack) -> None:
        """``opened`` closes in reverse order: discovery, the kernel, then what its work needs."""
        is_ours = self._server is not None or self._share.is_embedded
        reading = read_durability(bus.connection, self._config, embedded=is_ours)
        durability = self._loop.run(reading)
        self._key = NodeKey.open(self._config)
        here = this_process()
        projections = self._projections = RealmProjections(
            bus.journal, bus.checkpoints, self._in_flight, self._clock.now_ms
        )
        self._close_on_loop(opened, partial(_checkpoint, projections))
        self._close_on_loop(opened, self._background.stop)
        epoch = f"{self.name}.{entropy(6).hex()}"
        runs = self._runs = self._open_runs(bus, f"{epoch}{process_token()}", opened)
        if runs is not None:
            runs.hooks.activity = projections.hook_activity
        dispatchers = self._open_dispatchers(bus, opened)
        kernel = self._create_kernel(bus, self._settings(bus, here, epoch), dispatchers)
        self._kernel = kernel
        self._probes = self._create_probes(bus, kernel)
        self.metrics.add_source(self.gauges)
        opened.callback(self._stop_kernel, kernel)
        kernel.start()
        self._loop.run(self._background.start(self._background_tasks(bus)))
        discovery = self._discovery(bus, kernel)
        self._close_on_loop(opened, discovery.close)
        self._loop.run(discovery.open())
        kernel.record(
            Started(
                node=self.name,
                version=version("rookery"),
                host=here.host,
                pid=here.pid,
                durability=durability,
                builds={} if runs is None else runs.builds,
                functions="" if runs is None else runs.surfaces.functions,
                public_key=self._key.public_key,
                voucher=self._key.voucher,
                require_keys=self._config.approvals.require_keys,
                signs_revocations=True,
            )
        )

    def _add_workers(self) -> None:
        """Let the realm have the surfaces that this node was started with."""
        if self._runs is not None:
            client = self._realm_server.client(self._config.realm)
            run_unless_stopped(self._loop, self._runs.surfaces.add_remote(client), self._stopping)

    def _stop_kernel(self, kernel: Kernel) -> None:
        """Stop with a last fact about the node, unless it never served."""
        try:
            self._drained = kernel.stop(self._last_fact)
        finally:
            self._probes = None

    # --- parts ------------------------------------------------------------------------------------

    def _create_kernel(
        self, bus: JetStreamBus, settings: KernelSettings, dispatchers: ApprovalDispatchers
    ) -> Kernel:
        runs = self._runs
        replies = (
            RunReplies(bus.journal, bus.blobs, bus.request_endpoint, executes_runs=False)
            if runs is None
            else runs.replies
        )
        deciders = self._deciders()
        offered = ToolQueryHandler(ToolCatalogue() if runs is None else runs.catalogue)
        quarantine = MessageQuarantine(
            self.name, bus.journal, (NodeDecider(), *deciders), self._ask_actor
        )
        kernel = Kernel(
            bus,
            self._loop,
            deciders,
            settings,
            effect_handlers={
                **replies.handlers,
                **ResultSender(replies).handlers,
            },
            queries={
                **self._projections.queries,
                "quarantine": quarantine.reply,
                "tools": offered.handle,
                "agents": offered.list_agents,
                **({} if runs is None else runs.queries),
            },
        )
        if runs is not None:
            executors = runs.connect(
                kernel.ask,
                kernel.acts_for,
                dispatchers.dispatchers,
                kernel.failpoints,
                kernel.histories,
            )
            kernel.register_handlers(executors)
        return kernel

    async def _ask_actor(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Ask through the kernel, which is created before queries arrive."""
        assert self._kernel is not None
        return await self._kernel.ask(family, key, body, answer)

    def _deciders(self) -> list[Decider]:
        """One for each entry of ``DECIDERS`` that this node hosts."""
        runs, hosts = self._runs, {DeciderHost.NODE}
        configured: Sequence[Decider]
        if runs is None:
            settings = approval_settings(self._config.realm, self._config.approvals)
            configured = (ApprovalsDecider(settings, calls=False),)
        else:
            hosts.add(DeciderHost.EXECUTING_NODE)
            configured = runs.deciders
        ready = {decider.family: decider for decider in (self._admission(), *configured)}
        return [
            ready[family] if family in ready else entry.load()()
            for family, entry in DECIDERS.items()
            if entry.host in hosts
        ]

    def _create_in_flight_counter(self) -> InFlightCounter:
        if self._share.slots is None:
            return InFlightCounter()
        return InFlightShare(
            partition_of,
            lambda: frozenset() if self._kernel is None else self._kernel.owned_partitions,
            PARTITIONS,
        )

    def _admission(self) -> Decider:
        quotas, runs = self._config.quotas, self._runs
        return AdmissionDecider(
            queued_max=quotas.queue_length_max,
            in_flight_max=quotas.runs_in_flight_max,
            realm_load=self._in_flight,
            driven=runs is not None,
            judge=check_run_limits if runs is None else runs.validate_request,
        )

    def _settings(self, bus: JetStreamBus, here: ProcessIdentity, epoch: str) -> KernelSettings:
        config = self._config
        return KernelSettings(
            identity=NodeIdentity(self.name, epoch, msgspec.json.encode(here), is_dead),
            now_ms=self._clock.now_ms,
            uptime_s=self._clock.uptime_s,
            metrics=self.metrics,
            on_committed=self._runs.observers.on_committed if self._runs else None,
            failpoints=Failpoints(os.environ.get("ROOKERY_FAILPOINT", "")),
            claim_s=config.node.claim_s,
            is_cluster=bus.connection.cluster_servers > 1,
            processes=self._share.count,
            passivate_after_ms=int(config.node.passivate_after_s * 1000),
            drain_timeout_s=config.node.drain_timeout_s,
            payload_bytes_max=config.limits.payload_bytes_max,
            classes=config.facts,
            key=self._key.signer,
        )

    def _create_probes(self, bus: JetStreamBus, kernel: Kernel) -> NodeProbes:
        projections = self._projections
        return NodeProbes(
            loop=self._loop,
            bus=bus,
            kernel=kernel,
            runs_in_flight=lambda: self._in_flight.total,
            approvals_waiting=lambda: projections.approvals.waiting,
            messages_skipped=lambda: projections.skipped,
            background=self._background,
            server=self._server,
            runs=self._runs,
        )

    def _background_tasks(self, bus: JetStreamBus) -> Mapping[str, BackgroundTask]:
        tasks: dict[str, BackgroundTask] = {
            "views": self._projections.run,
            "drain": partial(poll_drain, bus.claims, self._node_name, self._on_drain),
            "quarantine": partial(bus.quarantine.follow, bus.feed, self._on_quarantined),
        }
        if self._runs is not None:
            tasks |= self._runs.background_tasks
            if published := self._config.peers.published:
                tasks["agents"] = partial(self._serve_agents, bus, published)
        return tasks

    async def _serve_agents(self, bus: JetStreamBus, sessions: Sequence[str]) -> None:
        client = self._realm_server.client(self._config.realm)
        protocol = AgentsProtocol(
            bus.connection, client, sessions, node=self.name, now_ms=self._clock.now_ms
        )
        await protocol.run()

    def _on_quarantined(self, message: QuarantinedMessage) -> None:
        """Use the message's entity again, and drop from the lists what was read from it."""
        assert self._kernel is not None
        self._kernel.on_quarantined(message.entity)
        if message.code == _READABLE_DAMAGE:
            self._rebuilds.start(self._projections.start_over())

    def _discovery(self, bus: JetStreamBus, kernel: Kernel) -> MicroServiceResponder:
        now_ms = self._clock.now_ms()
        service = build_service(
            self.name, version("rookery"), kernel.verbs, self.metrics, now_ms=now_ms
        )
        return MicroServiceResponder(bus.connection, Subjects(self._config.realm), service)

    def _open_dispatchers(self, bus: JetStreamBus, opened: ExitStack) -> ApprovalDispatchers:
        """Dispatchers of approvals, and the endpoint for the webhook's answers."""
        config = self._config
        dispatchers = ApprovalDispatchers(config.approvals, bus, self._clock.now_ms)
        client = self._realm_server.client(config.realm)
        dispatchers.open(opened)
        if self._share.slots is None:
            self.callback_url = open_callback(
                config.approvals, self._loop, client, opened, self._clock.now_ms
            )
        return dispatchers

    def _open_runs(self, bus: JetStreamBus, epoch: str, opened: ExitStack) -> RunServices | None:
        """The services that execute runs; ``None`` if a driver outside does."""
        config = self._config
        if config.node.driver == "outside":
            return None
        secrets = self._loop.run(
            NodeSecrets.open(bus.secrets, bus.realm, ConfiguredKeys.of(config))
        )
        leases = self._loop.run(
            LeaseServices.open(bus, self._loop, config, secrets, epoch=epoch, metrics=self.metrics)
        )
        models = open_models(
            config.models.known, config.models.default, Path.cwd(), model_budgets(config.budgets)
        )
        models.realm_usage = self._projections.model_usage
        opened.callback(models.close)
        leases.require_model_bindings(config.models.known)
        opening = RunServices.open(
            bus,
            self._loop,
            config,
            node=self.name,
            epoch=epoch,
            share=self._share,
            resources=self._loop.run(NodeResources.open(bus, config, secrets, opened)),
            remote=discover_workers(bus, self._loop, config.node.workers, self._stopping),
            node_secrets=secrets,
            leases=leases,
            models=models,
            metrics=self.metrics,
            opened=opened,
        )
        return self._loop.run(opening)

    # --- questions --------------------------------------------------------------------------------

    @property
    def drain_s(self) -> float:
        """How long the node finishes its work before it leaves the rest to the next node."""
        return self._config.node.drain_timeout_s

    def running(self) -> list[str]:
        """The ids of the realm's unfinished runs; none once the node has stopped."""
        if self._probes is None:
            return []
        listed = self._projections.runs.list(RunsQuery(status=RunState.RUNNING))
        return [run.run_id for run in self._loop.run(listed, timeout_s=PROBE_TIMEOUT_S).runs]

    @property
    def languages(self) -> frozenset[Language]:
        """The languages of the programs that this node executes."""
        return frozenset(() if self._runs is None else self._runs.builds)

    # --- probes -----------------------------------------------------------------------------------

    def alive(self) -> list[Probe]:
        """Failures that a restart would repair."""
        return [NOT_RUNNING] if self._probes is None else self._probes.alive()

    def ready(self) -> list[Probe]:
        """Conditions for sending work to this node."""
        return [NOT_RUNNING] if self._probes is None else self._probes.ready()

    def page(self) -> Page:
        """The answer to ``/metrics``."""
        return self.metrics.page()

    def gauges(self) -> Iterable[GaugeValue]:
        """The gauges of ``ops/metrics.py``, read now."""
        return () if self._probes is None else self._probes.gauges()


async def _checkpoint(projections: RealmProjections) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(CHECKPOINT_TIMEOUT_S):
            await projections.checkpoint()
