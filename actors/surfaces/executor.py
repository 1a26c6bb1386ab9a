"""The executor of surfaces: lets sessions take up the catalogue, connects to their surfaces, and
finalizes removals.

An effect may start again after a crash. What it asks the actor names the job or the removal it is
for, and the actor passes over one that has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints
from rookery.actors.messages import OpenCalls, OpenCallsQuery, TakeUpSurfaces
from rookery.actors.surfaces.connections import ConnectionReport
from rookery.actors.surfaces.effects import (
    CompleteSurface,
    ConnectSurface,
    DrainSurface,
    ReconnectServer,
    ReportServer,
    SettleRemoval,
    TakeUp,
)
from rookery.actors.surfaces.live_catalogue import FAMILY, LiveCatalogue
from rookery.bus.ports import TaskSet, Timer, Timers
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.machines.views import SurfacesView
from rookery.schemas.surfaces import LOCAL, SurfaceDue, SurfaceKind

__all__ = ["SurfaceExecutor"]

log = logging.getLogger(__name__)

SERVER_KINDS: Final = (SurfaceKind.MCP_STDIO, SurfaceKind.MCP_HTTP)
POLL_S_MIN: Final = 0.02
POLL_S_MAX: Final = 0.5


class SurfaceExecutor:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        *,
        ask: AskActor,
        timers: Timers,
        live: LiveCatalogue,
        running: Callable[[], Iterable[str]],
        failpoints: Failpoints,
    ) -> None:
        """``running``: the sessions whose runs this node executes now."""
        self._ask, self._timers, self._live = ask, timers, live
        self._running, self._failpoints = running, failpoints
        self._tasks = TaskSet()
        live.on_offered = self._stage_running
        live.reports.append(self._report_running)

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {
            TakeUpSurfaces: self.take_up,
            ConnectSurface: self.connect,
            DrainSurface: self.drain,
            ReconnectServer: self.reconnect,
        }

    async def take_up(self, effect: TakeUpSurfaces) -> None:
        """Stage the session's difference to the catalogue, and apply it."""
        await self._take_up(effect.session, effect.boundary)
        self._failpoints.hit("surfaces_taken_up")

    async def connect(self, effect: ConnectSurface) -> None:
        """Connect to the surface, and end the job by the result."""
        host, error, is_server = self._live.host(effect.surface), "", False
        if effect.surface == LOCAL and self._live.offered.has(LOCAL):
            pass  # The process is connected to its own functions.
        elif host is None:
            why = self._live.refused.get(effect.surface, "the catalogue has dropped it")
            error = f"SURFACE_UNAVAILABLE: {effect.surface}: {why}"
        else:
            is_server = host.entry.source.kind in SERVER_KINDS
            try:
                await host.connect()
            except Failed as failure:
                error = f"{failure.code}: {failure.message}"
        self._failpoints.hit("surface_connected")
        ended = CompleteSurface(
            surface=effect.surface,
            task=effect.task,
            lineage=effect.lineage,
            error=error,
            is_server=is_server,
        )
        await self._ask(FAMILY, effect.session, ended, SurfacesView)
        self._failpoints.hit("surface_completed")

    async def drain(self, effect: DrainSurface) -> None:
        """Finalize the removal once no call is in flight. A timer ends it after its time, whatever
        becomes of this process."""
        session, surface, pause_s, timer = effect.session, effect.surface, POLL_S_MIN, None
        while True:
            calls = await self._ask("turn", session, OpenCallsQuery(), OpenCalls)
            settled = SettleRemoval(
                surface=surface,
                timeout_at_ms=effect.timeout_at_ms,
                in_flight=calls.in_flight.get(surface, 0),
            )
            view = await self._ask(FAMILY, session, settled, SurfacesView)
            if not _is_draining(view, effect):
                break
            if timer is None:
                timer = _timer(effect)
                await self._timers.arm(timer)
            await asyncio.sleep(pause_s)
            pause_s = min(POLL_S_MAX, 2 * pause_s)
        self._failpoints.hit("surface_settled")
        if timer is not None:
            await self._timers.cancel(timer.id)

    async def reconnect(self, effect: ReconnectServer) -> None:
        """Connect to a server anew, for all sessions that share the connection."""
        host, error = self._live.host(effect.server), "the catalogue has no such server"
        if host is not None:
            await host.abandon()
            try:
                await host.connect()
            except Failed:
                error = host.error
            else:
                error = ""
        reached = McpServerState.FAILED if error else McpServerState.CONNECTED
        body = ReportServer(surface=effect.server, state=reached, error=error)
        await self._ask(FAMILY, effect.session, body, SurfacesView)

    def _report_running(self, report: ConnectionReport) -> None:
        """Let the sessions that have a run under way know the state of a server; others learn it
        when they take up its next change."""
        body = ReportServer(surface=report.surface, state=report.state, error=report.error)
        for session in tuple(self._running()):
            self._tasks.start(_logged(session, self._ask(FAMILY, session, body, SurfacesView)))

    def _stage_running(self) -> None:
        """Stage a change in the sessions that have a run under way; others take it up when they
        begin their next one."""
        for session in tuple(self._running()):
            self._tasks.start(_logged(session, self._take_up(session, None)))

    async def _take_up(self, session: str, boundary: int | None) -> None:
        """Stage the session's difference; at a boundary, apply it."""
        offered, calls = self._live.offered, OpenCalls()
        if boundary is not None or offered.without_local:
            calls = await self._ask("turn", session, OpenCallsQuery(), OpenCalls)
        taken = TakeUp(
            entries=offered.offered_to(session),
            catalogued=offered.sequence,
            boundary=boundary,
            in_flight=calls.in_flight,
            without_local=offered.local_sequence if offered.without_local else 0,
            sees_functions=calls.sees_functions,
        )
        await self._ask(FAMILY, session, taken, SurfacesView)


async def _logged(session: str, change: Awaitable[object]) -> None:
    try:
        await change
    except CodedError as error:  # Its next boundary takes a change up.
        log.info("surfaces not changed", extra={"key": session, "code": error.code})


def _is_draining(view: SurfacesView, effect: DrainSurface) -> bool:
    return any(
        entry.surface_id == effect.surface and entry.removal_timeout_at_ms == effect.timeout_at_ms
        for entry in view.entries
    )


def _timer(effect: DrainSurface) -> Timer:
    name = digest_bytes(f"{effect.session}/{effect.surface}".encode())[:24]
    due = SurfaceDue(surface=effect.surface, timeout_at_ms=effect.timeout_at_ms)
    return Timer(
        id=f"surface.{name}",
        due_ms=effect.timeout_at_ms,
        verb="surface_due",
        key=effect.session,
        body=encode_json(due),
    )
