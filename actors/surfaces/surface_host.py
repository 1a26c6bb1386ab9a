"""``SurfaceHost``: the node's connection to one surface, as a host of its tools.

It connects when a session or a call first needs it. A surface that is removed gets no new calls;
those in flight end before the connection is closed, or are ended by it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rookery.actors.surfaces.catalogue import CatalogueEntry
from rookery.actors.surfaces.connections import (
    ConnectionReport,
    SurfaceConnection,
    SurfaceConnections,
)
from rookery.actors.tools import ToolCallContext
from rookery.actors.tools.hosts import OutcomeUnknown, PastAttempt, ToolHost
from rookery.bus.ports import wait_first
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import SurfaceTool

__all__ = ["DRAIN_S", "SurfaceHost"]

log = logging.getLogger(__name__)

DRAIN_S: Final = 30.0
"""How long calls in flight may keep the connection of a removed surface open."""
RETRY_S: Final = 5.0
"""A connection that failed is tried again by the first call after this time."""
CONNECTED, FAILED = McpServerState.CONNECTED, McpServerState.FAILED


class SurfaceHost:
    """Implements the port ``ToolHost``. Used on the bus's loop."""

    def __init__(
        self,
        entry: CatalogueEntry,
        known: tuple[SurfaceTool, ...],
        connections: SurfaceConnections | None,
        on_report: Callable[[ConnectionReport], None],
    ) -> None:
        """``known``: the tools of the entry. ``connections``: ``None`` if this node has none of its
        kind. ``on_report`` learns what the connection reports."""
        self.entry, self.surface, self._known = entry, entry.surface, known
        self._connections, self._on_report = connections, on_report
        self.on_state: Callable[[], None] = lambda: None
        """Called when the state has changed."""
        self._opening: asyncio.Task[SurfaceConnection] | None = None
        self._failed_s = 0.0
        self.state, self.error = McpServerState.PENDING_CONNECT, ""
        self._in_flight: set[str] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def connect(self) -> SurfaceConnection:
        """The connection; ``SURFACE_UNAVAILABLE`` with its cause if there is none."""
        loop, opening = asyncio.get_running_loop(), self._opening
        is_failed = opening is not None and opening.done() and self._has_failed(opening)
        if opening is None or (is_failed and loop.time() >= self._failed_s + RETRY_S):
            opening = self._opening = asyncio.create_task(self._open())
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not opening.cancelled() or (task is not None and task.cancelling()):
                raise
            raise Failed(
                "SURFACE_UNAVAILABLE",
                f"{self.surface}: its connection was closed",
                hint=f"rookery surfaces show {self.surface}",
            ) from None
        except CodedError as error:
            text = error.message if error.code == "SURFACE_UNAVAILABLE" else str(error)
            raise Failed(
                "SURFACE_UNAVAILABLE",
                f"{self.surface}: {text}",
                hint=error.hint or f"rookery surfaces show {self.surface}",
            ) from None

    async def close(self) -> None:
        """Let the calls in flight end, but not for ever; then close the connection."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()
        except TimeoutError:
            log.warning("surface closed with calls in flight", extra={"surface": self.surface})
        await self.abandon()

    async def abandon(self) -> None:
        """Close the connection now."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        if not opening.done():
            opening.cancel()
            await asyncio.wait({opening})
        if not self._has_failed(opening):
            await opening.result().close()

    # --- port ToolHost ----------------------------------------------------------------------------

    async def wait_ready(self, name: str) -> None:
        while True:
            try:
                host = (await self.connect()).host
            except Failed:
                await asyncio.sleep(RETRY_S)
            else:
                await host.wait_ready(name)
                return

    async def call(
        self,
        ctx: ToolCallContext,
        timeout_ms: int,
        may_act: Callable[[], bool] = lambda: True,
    ) -> CallOutcome:
        """Call the tool; a call that meets no connection was not made."""
        self._begin(ctx.call_id)
        try:
            if (host := self._host) is not None:
                return await host.call(ctx, timeout_ms, may_act)
            return await self._connect_and_call(ctx, timeout_ms, may_act)
        finally:
            self._end(ctx.call_id)

    def call_quickly(self, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome | None:
        """None: a surface is never quick."""
        del ctx, may_act
        return None

    def cancel(self, call_id: str) -> None:
        if (host := self._host) is not None:
            host.cancel(call_id)

    async def wait_finished(self, call_id: str) -> None:
        if (host := self._host) is not None:
            await host.wait_finished(call_id)

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        self._begin(past.call_id)
        try:
            return await (await self.connect()).host.query_outcome(past)
        except Failed as failure:
            raise OutcomeUnknown(failure.message) from None
        finally:
            self._end(past.call_id)

    async def follow_task(self, past: PastAttempt, task: str) -> CallOutcome:
        self._begin(past.call_id)
        try:
            return await (await self.connect()).host.follow_task(past, task)
        finally:
            self._end(past.call_id)

    # --- inside -----------------------------------------------------------------------------------

    @property
    def connection(self) -> SurfaceConnection | None:
        """The open connection; ``None`` before it is open, and after it could not be opened."""
        opening = self._opening
        if opening is None or not opening.done() or self._has_failed(opening):
            return None
        return opening.result()

    @property
    def is_pending(self) -> bool:
        """Whether a connection was wanted, and there is none now."""
        return self._opening is not None and self.state is not CONNECTED

    @property
    def _host(self) -> ToolHost | None:
        connection = self.connection
        return None if connection is None else connection.host

    async def _connect_and_call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool]
    ) -> CallOutcome:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        connecting = asyncio.ensure_future(self.connect())
        if not await wait_first((connecting,), timeout_ms / 1_000):
            connecting.cancel()
            text = f"{self.surface} was not connected within {timeout_ms} ms"
            return CallOutcome(error=ToolFault("SURFACE_UNAVAILABLE", text))
        try:
            host = connecting.result().host
        except Failed as failure:
            if ctx.attempt > 1:  # The attempt before may have acted.
                raise OutcomeUnknown(failure.message) from None
            return CallOutcome(error=ToolFault(failure.code, failure.message))
        left_ms = timeout_ms - int((loop.time() - began_s) * 1_000)
        return await host.call(ctx, max(1, left_ms), may_act)

    async def _open(self) -> SurfaceConnection:
        entry = self.entry
        self._set_state(McpServerState.PENDING_CONNECT, "")
        try:
            if self._connections is None:
                raise Refused(
                    "SURFACE_UNAVAILABLE",
                    f"this node cannot connect to surfaces of kind {entry.source.kind}",
                    hint="rookery doctor",
                )
            connection = await self._connections.open(
                entry.surface, entry.source, self._report, self._known
            )
        except CodedError as error:
            loop = asyncio.get_running_loop()
            self._failed_s = loop.time()
            self._set_state(FAILED, f"{error.code}: {error.message}")
            raise
        self._set_state(CONNECTED, "")
        return connection

    def _report(self, report: ConnectionReport) -> None:
        self._set_state(report.state, report.error)
        self._on_report(report)

    def _set_state(self, state: McpServerState, error: str) -> None:
        self.state, self.error = state, error
        self.on_state()

    @staticmethod
    def _has_failed(opening: asyncio.Task[SurfaceConnection]) -> bool:
        return opening.cancelled() or opening.exception() is not None

    def _begin(self, call_id: str) -> None:
        self._in_flight.add(call_id)
        self._idle.clear()

    def _end(self, call_id: str) -> None:
        self._in_flight.discard(call_id)
        if not self._in_flight:
            self._idle.set()
