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

from rookery.actors.admission.executor import Results
from rookery.actors.approvals.decider import ApprovalsConcern
from rookery.actors.approvals.dispatchers.port import Dispatcher
from rookery.actors.approvals.executor import ApprovalsActing
from rookery.actors.approvals.settings import ApprovalSettings
from rookery.actors.approvals.signing import read_public_key
from rookery.actors.execution.driver import SandboxDriver
from rookery.actors.execution.executor import Runner
from rookery.actors.execution.history import Reader
from rookery.actors.execution.provisioning import NodeOffers
from rookery.actors.execution.queries.destroy import Destroying
from rookery.actors.execution.queries.fork import Forking
from rookery.actors.execution.queries.replay import Replaying
from rookery.actors.execution.queries.snapshots import Saving
from rookery.actors.execution.queries.validate import Validation
from rookery.actors.execution.rebuilt_session import Past
from rookery.actors.execution.session_cache import SessionMemory
from rookery.actors.kernel.command_router import Query
from rookery.actors.kernel.decider import Concern, Effect
from rookery.actors.kernel.effect_runner import Performer
from rookery.actors.kernel.local_ask import Ask
from rookery.actors.kernel.task_set import Tasks
from rookery.actors.projections.approvers import Approvers
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.realm_build import SharedBuild
from rookery.actors.sandbox.runtime.factory import open_sandbox
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.session_snapshots.decider import SandboxConcern
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.call_notifier import CallBoard
from rookery.actors.tools.call_slots import Places
from rookery.actors.tools.catalogue import LOCAL, VisibleTools
from rookery.actors.tools.decider import ToolsConcern
from rookery.actors.tools.executor import Acting
from rookery.actors.tools.host import LocalTools, ToolHost
from rookery.actors.tools.remote_host import RemoteTools
from rookery.actors.turns.decider import TurnsConcern
from rookery.bus.clock import SystemClock, entropy
from rookery.bus.ports import Bus, Loop
from rookery.ops.config import Approvals, Limits
from rookery.ops.process_identity import is_gone
from rookery.schemas.errors import Refused
from rookery.schemas.run import SessionLimits

__all__ = ["Runs", "approval_settings"]

T = TypeVar("T")

KEY_BYTES = 32
TOOLS_CLOSE_S = 5.0


class Runs:
    """Everything a node needs to drive runs."""

    def __init__(
        self,
        bus: Bus,
        loop: Loop,
        *,
        sandbox: Sandbox,
        local: LocalTools,
        remote: Sequence[RemoteTools],
        visible: VisibleTools,
        offers: NodeOffers,
        epoch: str,
        key: bytes,
        payload_bytes_max: int,
        approvals: ApprovalSettings,
        approvers: Approvers,
    ) -> None:
        self._bus, self._loop, self._sandbox, self._epoch = bus, loop, sandbox, epoch
        self._runner: Runner | None = None
        self._ask: Ask | None = None
        self._tasks = Tasks()
        self.visible = visible
        self._hosts: dict[str, ToolHost] = {crew.surface: crew for crew in remote}
        self._hosts[LOCAL] = local
        declared = [tool.capability for tool in self.visible]
        self._places = Places(declared, loop, SystemClock().now_ms)
        self._offers, self.approvers = offers, approvers
        self.judge = offers.judge
        self.languages = frozenset(sandbox.builds)
        self.builds = sandbox.builds
        self.results = Results(bus.journal, bus.blobs, bus.door)
        self._reader = Reader(bus.journal, bus.blobs)
        validation = Validation(
            sandbox, offers, self._reader, self._inside, bytes_max=payload_bytes_max
        )
        past = Past(sandbox, self._reader, bus.blobs, key, _name)
        destroying = Destroying(bus.journal, self._inside)
        saving = Saving(past, bus.blobs, visible.offered, self._inside, destroying)
        forking = Forking(past, saving, bus.blobs, offers.check, SystemClock().now_ms)
        self._replaying = Replaying(past)
        self.queries: Mapping[str, Query] = {
            "validate": validation.answer,
            "snapshot": saving.snapshot,
            "restore": saving.restore,
            "destroy": destroying.answer,
            "replay": self._replaying.answer,
            "fork": forking.answer,
        }
        self.concerns: Sequence[Concern] = (
            TurnsConcern(offers, self._let_go),
            ToolsConcern(
                visible=self.visible,
                places=self._places,
                epoch=epoch,
                approvals=bool(approvals.dispatchers),
            ),
            SandboxConcern(),
            ApprovalsConcern(approvals, approvers.find),
        )

    @classmethod
    async def open(
        cls,
        bus: Bus,
        loop: Loop,
        *,
        node: str,
        epoch: str,
        limits: Limits,
        registry: ToolRegistry,
        surfaces: Sequence[str],
        approvals: Approvals,
        opened: ExitStack,
    ) -> Runs:
        """Ask the workers of ``surfaces`` what they serve, settle which guest the realm runs, and
        load it. How to close what was opened is left in ``opened``: for after the kernel has let go
        of its runs, and not on the loop."""
        finding = (RemoteTools.find(bus.crews, surface) for surface in sorted(set(surfaces)))
        remote = await asyncio.gather(*finding)
        local = VisibleTools.local(registry)
        visible = VisibleTools([*local, *(tool for crew in remote for tool in crew.visible)])
        key = await bus.vault.secret("snapshots", entropy(KEY_BYTES))
        sandbox = await _loaded(bus, loop, node, key)
        opened.callback(sandbox.close)
        catalogue = await bus.blobs.put(visible.catalogue_bytes) if visible.offered else ""
        own = LocalTools(registry)
        opened.callback(own.close, TOOLS_CLOSE_S)
        approvers = Approvers(bus)
        await approvers.refresh()
        offers = NodeOffers(
            builds=sandbox.builds,
            tools=visible.offered,
            catalogue=catalogue,
            limits_max=_most(limits),
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
        opened.callback(lambda: loop.run(runs._replaying.close()))
        return runs

    def bind(
        self,
        ask: Ask,
        acts_for: Callable[[str], bool],
        dispatchers: Mapping[str, Dispatcher],
    ) -> Mapping[type[Effect], Performer]:
        """What the effects of runs, their calls and approvals come to."""
        bus, board = self._bus, CallBoard()
        reader, self._ask = self._reader, ask
        memory = SessionMemory(self._sandbox, reader, bus.blobs, ask)
        acting = Acting(
            ask=ask,
            blobs=bus.blobs,
            visible=self.visible,
            hosts=self._hosts,
            places=self._places,
            board=board,
            epoch=self._epoch,
            now_ms=SystemClock().now_ms,
            acts_for=acts_for,
            is_gone=is_gone,
        )
        runner = self._runner = Runner(
            ask=ask,
            board=board,
            blobs=bus.blobs,
            reader=reader,
            memory=memory,
            driver=lambda: SandboxDriver(self._sandbox),
            expect=self._offers.expect,
            note=self.results.note,
            answer=bus.door.answer,
            surplus=memory.surplus,
        )
        asking = ApprovalsActing(
            ask=ask,
            timers=bus.timers,
            dispatchers=dispatchers,
            tell=board.tell,
            now_ms=SystemClock().now_ms,
            goes_on=runner.goes_on,
        )
        performers: dict[type[Effect], Any] = {
            **acting.performers,
            **asking.performers,
            **runner.performers,
        }
        return performers

    def _let_go(self, session: str) -> None:
        """Told by an actor."""
        if self._runner is not None:
            self._loop.post(self._tasks.begin, self._runner.let_go(session))

    async def _inside(self, family: str, key: str, body: msgspec.Struct, answer: type[T]) -> T:
        """Queries come when the kernel has started, and by then we are bound."""
        assert self._ask is not None
        return await self._ask(family, key, body, answer)


def approval_settings(realm: str, config: Approvals) -> ApprovalSettings:
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


async def _loaded(bus: Bus, loop: Loop, node: str, key: bytes) -> Sandbox:
    """The sandbox with the guest the realm runs, which other nodes can have from the realm."""
    cache = GuestCache(cache_folder(os.environ))
    shared = SharedBuild(cache, bus.blobs, bus.claims, node)
    await shared.settle()
    await bus.blobs.put((await asyncio.to_thread(JavaScriptBuild.own)).piece)
    return await asyncio.to_thread(
        open_sandbox, key, cache, lambda build: loop.run(shared.fetch(build))
    )


def _most(limits: Limits) -> SessionLimits:
    """What a run or a session may ask for."""
    return SessionLimits(
        memory_mb=limits.memory_mb_max,
        cpu_ms=limits.cpu_ms_max,
        wall_ms=limits.wall_ms_max,
        max_stdout_bytes=limits.stdout_bytes_max,
        max_external_calls=limits.external_calls_max,
        max_stack_depth=limits.stack_depth_max,
    )


def _name() -> str:
    """Of a sandbox session that is nobody's."""
    return f"past-{entropy(12).hex()}"


def _root_key(text: str) -> str:
    try:
        return read_public_key(text) if text else ""
    except Refused as refusal:
        raise Refused(
            "CONFIG_INVALID", f"approvals.root_key: {refusal.message}", hint=refusal.hint
        ) from None
