"""A node that drives its runs: sandbox, tools and runner, wired to the node's bus.

Opened before the kernel, which needs the concerns, and bound to it afterwards, for performers ask
its actors. Owns what is closed with the node; no rule.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec

from rookery.actors.admission.executor import RunReplies
from rookery.actors.approvals.decider import ApprovalsDecider
from rookery.actors.approvals.dispatchers.port import Dispatcher
from rookery.actors.approvals.executor import ApprovalExecutor
from rookery.actors.approvals.signing import read_public_key
from rookery.actors.approvals.state import ApprovalSettings
from rookery.actors.execution.driver import SandboxDriver
from rookery.actors.execution.executor import RunExecutor
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.provisioning import RunProvisioner
from rookery.actors.execution.queries.destroy import SessionDestroyer
from rookery.actors.execution.queries.fork import RunForker
from rookery.actors.execution.queries.replay import RunReplayer
from rookery.actors.execution.queries.snapshots import SessionSnapshots
from rookery.actors.execution.queries.validate import RequestValidator
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.execution.session_cache import SessionCache
from rookery.actors.kernel.command_router import QueryHandler
from rookery.actors.kernel.decider import Decider, Effect
from rookery.actors.kernel.effect_runner import EffectHandler
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.projections.approvers import Approvers
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.realm_build import RealmBuild
from rookery.actors.sandbox.runtime.factory import open_sandbox
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.session_snapshots.decider import SnapshotsDecider
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.call_notifier import CallNotifier
from rookery.actors.tools.call_slots import CallSlots
from rookery.actors.tools.catalogue import LOCAL, ToolCatalogue
from rookery.actors.tools.decider import ToolsDecider
from rookery.actors.tools.executor import CallExecutor
from rookery.actors.tools.host import ToolHost
from rookery.actors.tools.local_host import LocalToolHost
from rookery.actors.tools.remote_host import RemoteToolHost
from rookery.actors.turns.decider import TurnsDecider
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.ports import Bus, BusLoop
from rookery.bus.task_set import TaskSet
from rookery.ops.config import ApprovalsConfig, LimitsConfig
from rookery.ops.process_identity import is_token_dead
from rookery.schemas.errors import Refused
from rookery.schemas.run import SessionLimits

__all__ = ["RunServices", "approval_settings"]

T = TypeVar("T")

KEY_BYTES = 32
TOOLS_CLOSE_S = 5.0


class RunServices:
    """Everything a node needs to drive runs."""

    def __init__(
        self,
        bus: Bus,
        loop: BusLoop,
        *,
        sandbox: Sandbox,
        local: LocalToolHost,
        remote: Sequence[RemoteToolHost],
        visible: ToolCatalogue,
        offers: RunProvisioner,
        epoch: str,
        key: bytes,
        payload_bytes_max: int,
        approvals: ApprovalSettings,
        approvers: Approvers,
    ) -> None:
        self._bus, self._loop, self._sandbox, self._epoch = bus, loop, sandbox, epoch
        self._executor: RunExecutor | None = None
        self._ask: AskActor | None = None
        self._tasks = TaskSet()
        self.catalogue = visible
        self._hosts: dict[str, ToolHost] = {crew.surface: crew for crew in remote}
        self._hosts[LOCAL] = local
        declared = [tool.capability for tool in self.catalogue]
        self._call_slots = CallSlots(declared, loop, SystemClock().now_ms)
        self._provisioner, self.approvers = offers, approvers
        self.validate_request = offers.validate
        self.languages = frozenset(sandbox.builds)
        self.builds = sandbox.builds
        self.replies = RunReplies(bus.journal, bus.blobs, bus.request_endpoint)
        self._history = RunHistoryReader(bus.journal, bus.blobs)
        validation = RequestValidator(
            sandbox, offers, self._history, self._ask_actor, bytes_max=payload_bytes_max
        )
        past = SessionRebuilder(sandbox, self._history, bus.blobs, key, _replay_session_id)
        destroying = SessionDestroyer(bus.journal, self._ask_actor)
        saving = SessionSnapshots(
            past, bus.blobs, visible.available_tools, self._ask_actor, destroying
        )
        forking = RunForker(
            past, saving, bus.blobs, offers.require_same_schemas, SystemClock().now_ms
        )
        self._replay_query = RunReplayer(past)
        self.queries: Mapping[str, QueryHandler] = {
            "validate": validation.reply,
            "snapshot": saving.snapshot,
            "restore": saving.restore,
            "destroy": destroying.reply,
            "replay": self._replay_query.reply,
            "fork": forking.reply,
        }
        self.deciders: Sequence[Decider] = (
            TurnsDecider(offers, self._evict),
            ToolsDecider(
                visible=self.catalogue,
                places=self._call_slots,
                epoch=epoch,
                approvals=bool(approvals.dispatchers),
            ),
            SnapshotsDecider(),
            ApprovalsDecider(approvals, approvers.approver_of),
        )

    @classmethod
    async def open(
        cls,
        bus: Bus,
        loop: BusLoop,
        *,
        node: str,
        epoch: str,
        limits: LimitsConfig,
        registry: ToolRegistry,
        surfaces: Sequence[str],
        approvals: ApprovalsConfig,
        opened: ExitStack,
    ) -> RunServices:
        """Ask the workers of ``surfaces`` what they serve, settle which guest the realm runs, and
        load it. How to close what was opened is left in ``opened``: for after the kernel has let go
        of its runs, and not on the loop."""
        finding = (
            RemoteToolHost.discover(bus.tool_workers, surface) for surface in sorted(set(surfaces))
        )
        remote = await asyncio.gather(*finding)
        local = ToolCatalogue.local(registry)
        visible = ToolCatalogue(
            [*local, *(tool for crew in remote for tool in crew.catalogue_tools)]
        )
        key = await bus.secrets.get_or_create("snapshots", entropy(KEY_BYTES))
        sandbox = await _load_sandbox(bus, loop, node, key)
        opened.callback(sandbox.close)
        catalogue = await bus.blobs.put(visible.catalogue_bytes) if visible.available_tools else ""
        own = LocalToolHost(registry)
        opened.callback(own.close, TOOLS_CLOSE_S)
        approvers = Approvers(bus)
        await approvers.refresh()
        offers = RunProvisioner(
            builds=sandbox.builds,
            tools=visible.available_tools,
            catalogue=catalogue,
            limits_max=_limits_max(limits),
            entropy=entropy,
        )
        runs = cls(
            bus,
            loop,
            sandbox=sandbox,
            local=own,
            remote=remote,
            visible=visible,
            offers=offers,
            epoch=epoch,
            key=key,
            payload_bytes_max=limits.payload_bytes_max,
            approvals=approval_settings(bus.realm, approvals),
            approvers=approvers,
        )
        opened.callback(lambda: loop.run(runs._replay_query.close()))
        return runs

    def connect(
        self,
        ask: AskActor,
        acts_for: Callable[[str], bool],
        dispatchers: Mapping[str, Dispatcher],
    ) -> Mapping[type[Effect], EffectHandler]:
        """What the effects of runs, their calls and approvals come to."""
        bus, board = self._bus, CallNotifier()
        reader, self._ask = self._history, ask
        memory = SessionCache(self._sandbox, reader, bus.blobs, ask)
        acting = CallExecutor(
            ask=ask,
            blobs=bus.blobs,
            visible=self.catalogue,
            hosts=self._hosts,
            places=self._call_slots,
            board=board,
            epoch=self._epoch,
            now_ms=SystemClock().now_ms,
            acts_for=acts_for,
            is_gone=is_token_dead,
        )
        runner = self._executor = RunExecutor(
            ask=ask,
            call_notifier=board,
            blobs=bus.blobs,
            reader=reader,
            session_cache=memory,
            driver=lambda: SandboxDriver(self._sandbox),
            require_tools=self._provisioner.require_tools,
            publish_result=self.replies.publish,
            send_replies=bus.request_endpoint.reply,
            eviction_candidates=memory.eviction_candidates,
        )
        asking = ApprovalExecutor(
            ask=ask,
            timers=bus.timers,
            dispatchers=dispatchers,
            notify_call=board.notify,
            now_ms=SystemClock().now_ms,
            can_continue=runner.can_continue,
        )
        performers: dict[type[Effect], Any] = {
            **acting.handlers,
            **asking.handlers,
            **runner.handlers,
        }
        return performers

    def _evict(self, session: str) -> None:
        """Told by an actor."""
        if self._executor is not None:
            self._loop.call_soon(self._tasks.start, self._executor.evict(session))

    async def _ask_actor(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Queries come when the kernel has started, and by then we are bound."""
        assert self._ask is not None
        return await self._ask(family, key, body, answer)


def approval_settings(realm: str, config: ApprovalsConfig) -> ApprovalSettings:
    """``Refused`` if what is configured cannot be used."""
    return ApprovalSettings(
        realm=realm,
        dispatchers=config.dispatchers,
        escalate_to=() if config.escalate_to is None else (config.escalate_to,),
        escalate_after_ms=config.escalate_after_ms or 0,
        timeout_ms=config.timeout_ms,
        grant_ttl_ms=config.grant_ttl_ms,
        session_grant_ttl_ms=config.session_grant_ttl_ms,
        require_keys=config.require_keys,
        root_key=_root_key(config.root_key),
    )


async def _load_sandbox(bus: Bus, loop: BusLoop, node: str, key: bytes) -> Sandbox:
    """The sandbox with the guest the realm runs, which other nodes can have from the realm."""
    cache = GuestCache(cache_folder(os.environ))
    shared = RealmBuild(cache, bus.blobs, bus.claims, node)
    await shared.agree()
    await bus.blobs.put((await asyncio.to_thread(JavaScriptBuild.installed)).piece)
    return await asyncio.to_thread(
        open_sandbox, key, cache, lambda build: loop.run(shared.fetch(build))
    )


def _limits_max(limits: LimitsConfig) -> SessionLimits:
    """What a run or a session may ask for."""
    return SessionLimits(
        memory_mb=limits.memory_mb_max,
        cpu_ms=limits.cpu_ms_max,
        wall_ms=limits.wall_ms_max,
        max_stdout_bytes=limits.stdout_bytes_max,
        max_external_calls=limits.external_calls_max,
        max_stack_depth=limits.stack_depth_max,
    )


def _replay_session_id() -> str:
    """Of a sandbox session that is nobody's."""
    return f"past-{entropy(12).hex()}"


def _root_key(text: str) -> str:
    try:
        return read_public_key(text) if text else ""
    except Refused as refusal:
        raise Refused(
            "CONFIG_INVALID", f"approvals.root_key: {refusal.message}", hint=refusal.hint
        ) from None
