"""The services of a node that execute runs: sandbox, tools, approvals, and their executors.

They open before the kernel, which needs their deciders, and are connected to it afterwards, because
executors ask its actors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import msgspec

from rookery.actors.admission import RunReplies
from rookery.actors.approvals import ApprovalExecutor, ApprovalsDecider
from rookery.actors.approvals.dispatchers import Dispatcher
from rookery.actors.approvals.state import ApprovalSettings
from rookery.actors.execution import EntityReader, ExecutionPorts, NodeExecution, RunProvisioner
from rookery.actors.execution.agents import Models
from rookery.actors.hooks import HookObservers
from rookery.actors.hooks.realm import LiveHooks
from rookery.actors.kernel import Decider, Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, QueryHandler
from rookery.actors.policy import RunPolicies
from rookery.actors.projections import Approvers
from rookery.actors.protection.revocations import Revocations, RightsRevoker
from rookery.actors.sandbox import Sandbox
from rookery.actors.session_snapshots import SnapshotsDecider
from rookery.actors.surfaces import SurfacesDecider
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.agents import ChildExecutor
from rookery.actors.tools.attempts import CallExecutor, CallNotifier, WaitExecutor
from rookery.actors.tools.calls import CallRules
from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.functions import LocalToolHost, RemoteToolHost
from rookery.actors.turns import TurnsDecider
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.event_loop import TaskSet
from rookery.bus.ports import Bus, BusLoop
from rookery.bus.sealed_secrets import RingSeal
from rookery.ops.background_tasks import BackgroundTask
from rookery.ops.config import ApprovalsConfig, Config
from rookery.ops.hooks import hook_openers, hook_queries
from rookery.ops.keys import NodeSecrets, TrustRoots
from rookery.ops.leases import LeaseServices
from rookery.ops.metrics import NodeMetrics
from rookery.ops.node_resources import NodeResources
from rookery.ops.peers import PeerServices, PeerTools
from rookery.ops.process_identity import is_token_dead
from rookery.ops.processes import ProcessShare
from rookery.ops.run_environment import (
    PolicyServices,
    load_sandbox,
    open_policies,
    provision,
    retry_jitter,
)
from rookery.ops.surfaces import SurfaceResolver, SurfaceServices

__all__ = ["RunServices", "approval_settings"]

log = logging.getLogger(__name__)

T = TypeVar("T")

TOOLS_CLOSE_S = 5.0


class RunServices:
    """Everything a node needs to execute runs."""

    def __init__(
        self,
        bus: Bus,
        loop: BusLoop,
        *,
        sandbox: Sandbox,
        surfaces: SurfaceServices,
        resources: NodeResources,
        provisioner: RunProvisioner,
        epoch: str,
        share: ProcessShare,
        config: Config,
        approvers: Approvers,
        revocations: Revocations,
        node_secrets: NodeSecrets,
        leases: LeaseServices,
        peers: PeerServices,
        policies: RunPolicies,
        metrics: NodeMetrics,
    ) -> None:
        self._bus, self._loop, self._sandbox, self._epoch = bus, loop, sandbox, epoch
        self._metrics, self.leases, self.peers = metrics, leases, peers
        self._ask: AskActor | None = None
        self._tasks = TaskSet()
        self.surfaces, self.catalogue = surfaces, surfaces.tools
        resources.reader.register(SurfaceResolver(surfaces.live, resources.store))
        self._provisioner, self.approvers, self._share = provisioner, approvers, share
        self.hooks = LiveHooks(
            bus, provisioner.hooks, hook_openers(bus, sandbox, node_secrets.read_stored)
        )
        self.observers = HookObservers(provisioner.hooks, SystemClock().now_ms)
        self.revocations = revocations
        self.validate_request = self._provisioner.validate
        self.languages = frozenset(sandbox.builds)
        self.builds = sandbox.builds
        self.replies = RunReplies(bus.journal, bus.blobs, bus.request_endpoint)
        self.secrets = node_secrets
        self._seal = RingSeal(node_secrets.values, bus.realm, entropy)
        self._policies = policies
        self._execution = self._create_execution()
        self.queries = {
            **resources.reader.queries,
            **PolicyServices(policies, self.catalogue).queries,
            **peers.queries,
            **self._execution.queries(config.limits.payload_bytes_max),
            **self._create_queries(),
        }
        self.deciders = self._create_deciders(approval_settings(bus.realm, config.approvals))

    def _create_deciders(self, approvals: ApprovalSettings) -> Sequence[Decider]:
        surfaces, gate = self.surfaces, self.leases.node.states.gate
        policies = self._policies
        call_rules = CallRules(
            surfaces.tools,
            surfaces.slots,
            self._epoch,
            lease_gate=gate,
            policy_now=policies.current,
            policy_of=policies.get,
            peer_gate=self.peers.needs_approval,
        )
        left_for = self.revocations.left_for
        return (
            TurnsDecider(
                self._provisioner,
                self._evict,
                call_rules,
                left_for,
                surfaces.visible,
                pin_again=self._provisioner.hooks.pin_again,
            ),
            SnapshotsDecider(),
            ApprovalsDecider(approvals, self.approvers.approver_of),
            SurfacesDecider(executes_runs=True),
            self.peers.decider,
            self.leases.node.decider,
        )

    def _create_execution(self) -> NodeExecution:
        clock, leases = SystemClock(), self.leases
        ports = ExecutionPorts(
            bus=self._bus,
            sandbox=self._sandbox,
            provisioner=self._provisioner,
            catalogue=self.catalogue,
            visible=self.surfaces.visible,
            policies=self._policies,
            credentials=leases.node.credentials,
            lease_gate=leases.node.states.gate,
            peer_gate=self.peers.needs_approval,
            seal=self._seal,
            metrics=self._metrics,
            now_ms=clock.now_ms,
            uptime_s=clock.uptime_s,
            jitter=retry_jitter,
            new_session_id=_replay_session_id,
        )
        return NodeExecution(ports, self._ask_actor)

    def _create_queries(self) -> Mapping[str, QueryHandler]:
        return {
            **self.leases.node.queries(self._ask_actor),
            **self.surfaces.queries(self._ask_actor),
            **hook_queries(self._ask_actor, self.hooks, self.catalogue),
            "revoke": RightsRevoker(self._epoch, self._ask_actor, self.revocations).reply,
        }

    @classmethod
    async def open(
        cls,
        bus: Bus,
        loop: BusLoop,
        config: Config,
        *,
        node: str,
        epoch: str,
        share: ProcessShare,
        remote: Sequence[RemoteToolHost],
        resources: NodeResources,
        node_secrets: NodeSecrets,
        leases: LeaseServices,
        models: Models,
        metrics: NodeMetrics,
        opened: ExitStack,
    ) -> RunServices:
        """Agree with the realm on a guest, and load it. ``remote``: the hosts of tools on workers.
        ``opened`` gets what is to be closed after the kernel, off the loop."""
        of_peers = PeerTools(opened, config.peers)
        catalogue, registry = resources.catalogue(of_peers.tools), resources.registry
        sandbox = await load_sandbox(
            bus, loop, config, node, key=node_secrets.snapshots, share=share, opened=opened
        )
        surfaces = SurfaceServices(
            bus,
            loop,
            tools=catalogue,
            local=_open_local(registry, opened),
            others=(*resources.hosts, *of_peers.hosts),
            remote=remote,
            share=share,
            leases=leases,
            seal=RingSeal(node_secrets.values, bus.realm, entropy),
        )
        approvers = await _open_approvers(bus, surfaces.declared, config.approvals)
        policies = await open_policies(bus, config.policy, config.approvals)
        services = cls(
            bus,
            loop,
            sandbox=sandbox,
            surfaces=surfaces,
            resources=resources,
            provisioner=await provision(
                bus, config, sandbox, surfaces, registry=registry, models=models, policies=policies
            ),
            epoch=epoch,
            share=share,
            config=config,
            approvers=approvers,
            revocations=await _open_revocations(bus),
            node_secrets=node_secrets,
            leases=leases,
            peers=await PeerServices.open(bus, node_secrets.sealed, approvers, metrics, of_peers),
            policies=policies,
            metrics=metrics,
        )
        await services._open(opened)
        return services

    async def _open(self, opened: ExitStack) -> None:
        """Read what the realm has registered; ``opened`` closes it again."""
        opened.callback(lambda: self._loop.run(self._close()))
        await self.surfaces.open()
        await self.hooks.open()

    async def _close(self) -> None:
        await self.surfaces.close()
        await self.observers.close()
        await self._execution.close()

    def connect(
        self,
        ask: AskActor,
        acts_for: Callable[[str], bool],
        dispatchers: Mapping[str, Dispatcher],
        failpoints: Failpoints,
        histories: EntityReader,
    ) -> Mapping[type[Effect], EffectHandler]:
        """Create the executors; the handler of each of their effects. ``histories``: those of
        the sessions that this node owns."""
        self._ask, notifier = ask, CallNotifier()
        surfaces, now_ms = self.surfaces, SystemClock().now_ms
        execution = self._execution
        runner = execution.connect(histories, notifier, acts_for, failpoints, self._share.divide)
        calls = CallExecutor(
            ask=ask,
            blobs=self._bus.blobs,
            visible=self.catalogue,
            hosts=surfaces.hosts,
            places=surfaces.slots,
            board=notifier,
            epoch=self._epoch,
            now_ms=now_ms,
            acts_for=acts_for,
            is_gone=is_token_dead,
            metrics=self._metrics,
            failpoints=failpoints,
            seal=self._seal,
            credentials=self.leases.node.credentials,
        )
        waits = WaitExecutor(ask=ask, timers=self._bus.timers, now_ms=now_ms)
        approvals = ApprovalExecutor(
            ask=ask,
            timers=self._bus.timers,
            dispatchers=dispatchers,
            notify_call=notifier.notify,
            now_ms=now_ms,
            can_continue=runner.can_continue,
            resume_in_turn=runner.resumptions.admit,
        )
        children = ChildExecutor(
            timers=self._bus.timers, blobs=self._bus.blobs, now_ms=now_ms, failpoints=failpoints
        )
        found = [one.handlers for one in (calls, waits, children, approvals, execution)]
        found.append(self.leases.node.handlers(ask, failpoints))
        found.append(self.peers.handlers(ask, failpoints, self.leases.node))
        found.append(
            surfaces.connect(ask, acts_for, lambda: execution.running_sessions, failpoints)
        )
        return {effect: handler for each in found for effect, handler in each.items()}

    @property
    def background_tasks(self) -> Mapping[str, BackgroundTask]:
        return {
            "approvers": self.approvers.run,
            "revocations": self.revocations.run,
            "leases": self.leases.node.states.run,
            "roster": self.peers.roster.run,
            "peers": self.peers.watch,
            "surfaces": self.surfaces.live.run,
            "hooks": self.hooks.run,
            "snapshots": self._execution.remove_snapshots,
            "secrets": self.secrets.watch,
        }

    @property
    def executing(self) -> int:
        """How many runs this node executes now."""
        return self._execution.executing

    def _evict(self, session: str) -> None:
        """Called by the turn's actor, on its thread."""
        self._loop.call_soon(self._tasks.start, self._execution.evict(session))

    async def _ask_actor(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Ask through the kernel, which is connected before queries arrive."""
        assert self._ask is not None
        return await self._ask(family, key, body, answer)


def approval_settings(realm: str, config: ApprovalsConfig) -> ApprovalSettings:
    """The decider's settings; ``Refused`` if the configuration is invalid."""
    return ApprovalSettings(
        realm=realm,
        dispatchers=config.dispatchers,
        escalate_to=() if config.escalate_to is None else (config.escalate_to,),
        escalate_after_ms=config.escalate_after_ms or 0,
        timeout_ms=config.timeout_ms,
        grant_ttl_ms=config.grant_ttl_ms,
        session_grant_ttl_ms=config.session_grant_ttl_ms,
        require_keys=config.require_keys,
        root_key=TrustRoots.root_key_of(config),
    )


def _open_local(registry: ToolRegistry, opened: ExitStack) -> LocalToolHost:
    local = LocalToolHost(registry)
    opened.callback(local.close, TOOLS_CLOSE_S)
    return local


async def _open_approvers(
    bus: Bus, declared: Iterable[CatalogueTool], config: ApprovalsConfig
) -> Approvers:
    """The approvers; it warns where a credential is enough to approve a call."""
    settings = approval_settings(bus.realm, config)
    asking = [tool.capability.name for tool in declared if tool.requires_approval]
    if asking and not settings.require_keys:
        log.warning(
            "approvals need no signature: set approvals.require_keys", extra={"tools": asking[:20]}
        )
    approvers = Approvers(bus, settings.root_key)
    await approvers.open()
    return approvers


async def _open_revocations(bus: Bus) -> Revocations:
    revocations = Revocations(bus)
    await revocations.open()
    return revocations


def _replay_session_id() -> str:
    """The id of a sandbox session that only a replay uses."""
    return f"past-{entropy(12).hex()}"
