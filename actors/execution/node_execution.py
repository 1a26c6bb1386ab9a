"""``NodeExecution``: the parts that execute the runs of a node, assembled.

The queries about past runs are there before the kernel, which needs the deciders first; the
executor of runs is created when the services are connected to the actors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from rookery.actors.credentials import CredentialSource, LeaseGate
from rookery.actors.execution.driver import RunProvisioner, SandboxDriver
from rookery.actors.execution.executor import AgentExecution, RunExecutor
from rookery.actors.execution.history import EntityReader, RunHistoryReader
from rookery.actors.execution.models.model_execution import model_execution
from rookery.actors.execution.queries.conversations import ConversationQueries
from rookery.actors.execution.queries.files import SessionFiles
from rookery.actors.execution.queries.fork import RunForker
from rookery.actors.execution.queries.replay import RunReplayer
from rookery.actors.execution.queries.snapshots import SessionDestroyer, SessionSnapshots
from rookery.actors.execution.queries.undo import RunUndoer
from rookery.actors.execution.queries.validate import RequestValidator
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.execution.session_cache import IDLE_BYTES_MAX, SessionCache
from rookery.actors.execution.snapshot_keeper import SnapshotKeeper, SnapshotRemover
from rookery.actors.hooks.points import HookPoints
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, QueryHandler
from rookery.actors.metrics import KernelMetrics
from rookery.actors.policy import RunPolicies
from rookery.actors.sandbox import Sandbox
from rookery.actors.tools.attempts import CallNotifier
from rookery.actors.tools.calls import RequestPolicy
from rookery.actors.tools.catalogue import ToolCatalogue, VisibleTools
from rookery.bus.ports import Bus, ValueSeal

__all__ = ["ExecutionPorts", "NodeExecution"]


class ExecutionPorts(NamedTuple):
    """What a node executes runs with."""

    bus: Bus
    sandbox: Sandbox
    provisioner: RunProvisioner
    catalogue: ToolCatalogue
    visible: VisibleTools
    policies: RunPolicies
    credentials: CredentialSource
    lease_gate: LeaseGate
    peer_gate: Callable[[str], bool]
    seal: ValueSeal
    """Of sensitive values."""
    metrics: KernelMetrics
    now_ms: Callable[[], int]
    uptime_s: Callable[[], float]
    jitter: Callable[[], float]
    """By which the delay before a model is asked again is multiplied."""
    new_session_id: Callable[[], str]
    """The id of a sandbox session that only a replay uses."""


class NodeExecution:
    """One per node; lives on the bus's loop."""

    def __init__(self, ports: ExecutionPorts, ask: AskActor) -> None:
        self._ports, self._ask = ports, ask
        self._history = self._reader(ports.bus.journal)
        self._rebuilder = SessionRebuilder(
            ports.sandbox, self._history, ports.bus.images, ports.new_session_id
        )
        self._replayer = RunReplayer(self._rebuilder)
        self._keeper = SnapshotKeeper(
            ports.sandbox, self._history, ports.bus.images, ask, ports.now_ms, metrics=ports.metrics
        )
        self._remover: SnapshotRemover | None = None
        self._executor: RunExecutor | None = None

    def queries(self, payload_bytes_max: int) -> Mapping[str, QueryHandler]:
        """The handlers of queries about sessions and their past runs."""
        bus, provisioner, now_ms = self._ports.bus, self._ports.provisioner, self._ports.now_ms
        validator = RequestValidator(
            self._ports.sandbox, provisioner, self._history, self._ask, bytes_max=payload_bytes_max
        )
        destroyer = SessionDestroyer(bus.journal, self._ask)
        snapshots = SessionSnapshots(
            self._rebuilder,
            bus.images,
            lambda: self._ports.catalogue.available_tools,
            self._ask,
            destroyer,
            now_ms=now_ms,
        )
        forker = RunForker(
            self._rebuilder,
            snapshots,
            bus.images,
            bus.blobs,
            check=provisioner.require_same_schemas,
            pin=provisioner.pin,
            now_ms=now_ms,
        )
        return {
            "validate": validator.reply,
            "snapshot": snapshots.snapshot,
            "restore": snapshots.restore,
            "destroy": destroyer.reply,
            "files": SessionFiles(self._rebuilder, bus.blobs, self._ask).reply,
            "replay": self._replayer.reply,
            "fork": forker.reply,
            "undo": RunUndoer(
                self._rebuilder, snapshots, bus.images, self._ask, now_ms=now_ms
            ).reply,
            "conversation": ConversationQueries(self._history, self._ask).reply,
        }

    def connect(
        self,
        histories: EntityReader,
        notifier: CallNotifier,
        acts_for: Callable[[str], bool],
        failpoints: Failpoints,
        divide: Callable[[int], int],
    ) -> RunExecutor:
        """Create the executor of runs. ``histories``: those of the sessions that this node owns;
        ``divide``: the share of this process in what a node may use."""
        ports, history = self._ports, self._reader(histories)
        bus = ports.bus
        self._remover = SnapshotRemover(self._history, bus.images, acts_for, ports.now_ms)
        cache = SessionCache(
            ports.sandbox,
            history,
            bus.images,
            self._keeper,
            self._remover,
            resting_bytes_max=divide(IDLE_BYTES_MAX),
        )
        self._executor = RunExecutor(
            ask=self._ask,
            call_notifier=notifier,
            blobs=bus.blobs,
            reader=history,
            session_cache=cache,
            driver=lambda: SandboxDriver(ports.sandbox, ports.metrics),
            hook_points=self._hook_points(failpoints),
            require_tools=ports.provisioner.require_tools,
            wait_for_hooks=ports.provisioner.hooks.wait_for,
            send_replies=bus.request_endpoint.reply,
            send_output=bus.send_output,
            eviction_candidates=cache.eviction_candidates,
            agents=self._agents(history, failpoints),
        )
        return self._executor

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        """How each effect of runs and of their snapshots is performed."""
        assert self._executor is not None
        assert self._remover is not None
        return {**self._executor.handlers, **self._remover.handlers}

    @property
    def executing(self) -> int:
        """How many runs this node executes now."""
        return 0 if self._executor is None else self._executor.executing

    @property
    def running_sessions(self) -> Iterable[str]:
        return () if self._executor is None else self._executor.running_sessions

    async def evict(self, session: str) -> None:
        if self._executor is not None:
            await self._executor.evict(session)

    async def remove_snapshots(self) -> None:
        """Delete snapshots that nothing names, until cancelled."""
        assert self._remover is not None
        await self._remover.run()

    async def close(self) -> None:
        await self._replayer.close()
        await self._keeper.close()
        if self._remover is not None:
            await self._remover.close()

    # --- parts ------------------------------------------------------------------------------------

    def _reader(self, journal: EntityReader) -> RunHistoryReader:
        ports = self._ports
        return RunHistoryReader(journal, ports.bus.blobs, ports.seal, ports.visible, ports.policies)

    def _agents(self, history: RunHistoryReader, failpoints: Failpoints) -> AgentExecution:
        """What executes the runs of models."""
        ports = self._ports
        return model_execution(
            ports.provisioner.models,
            history,
            blobs=ports.bus.blobs,
            check=ports.catalogue.check_call,
            failpoints=failpoints,
            send_output=ports.bus.send_output,
            ask=self._ask,
            now_ms=ports.now_ms,
            jitter=ports.jitter,
            credentials=ports.credentials,
            lease_gate=ports.lease_gate,
        )

    def _hook_points(self, failpoints: Failpoints) -> Callable[..., HookPoints]:
        """What invokes the hooks of one run."""
        ports = self._ports
        return partial(
            HookPoints,
            ports.provisioner.hooks,
            ports.catalogue,
            ports.now_ms,
            requests=RequestPolicy(ports.policies.get, ports.peer_gate),
            failpoints=failpoints,
            metrics=ports.metrics,
            uptime_s=ports.uptime_s,
        )
