"""A connection to one server, as the node uses it: its tools, its host, its resources, its log.
Used on the bus's loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from rookery.actors.credentials import CredentialSource
from rookery.actors.surfaces.connections import ConnectionReport, ListedResource, SurfaceContent
from rookery.bus.event_loop import LoopThread
from rookery.bus.ports import Blobs, ValueSeal, wait_first
from rookery.ops.mcp_client.connection import McpTask, error_words
from rookery.ops.mcp_client.host import McpToolHost
from rookery.ops.mcp_client.results import CallResult, resource_contents, scrub_result
from rookery.ops.mcp_client.server_tools import ToolListing
from rookery.ops.mcp_client.source_access import NodeServices, SourceAccess
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import SurfaceSource, SurfaceTool

__all__ = ["ServerConnection"]

log = logging.getLogger(__name__)

READ_S: Final = 60.0
"""For a resource, or a page of their list."""
PAGES_MAX: Final = 20
RESOURCES_MAX: Final = 1_000
CLOSE_S: Final = 20.0
"""More than a server gets to end, and its guard to end it."""

T = TypeVar("T")


class ServerConnection:
    """Implements the port ``SurfaceConnection``."""

    def __init__(
        self,
        surface: str,
        source: SurfaceSource,
        *,
        thread: LoopThread,
        blobs: Blobs,
        seal: ValueSeal,
        credentials: CredentialSource,
        environ: Mapping[str, str],
        report: Callable[[ConnectionReport], None],
    ) -> None:
        self._surface, self._digest = surface, digest_bytes(encode_json(source))
        self._thread, self._report = thread, report
        self._loop = asyncio.get_running_loop()
        node = NodeServices(seal, credentials, environ, self._loop)
        self._access = SourceAccess(surface, source, node)
        self._task = McpTask(surface, source, self._access, self._notify)
        self._host = McpToolHost(self._task, thread, blobs)
        self._running: asyncio.Future[None] | None = None
        self.state = McpServerState.DISCONNECTED
        self.tools: tuple[SurfaceTool, ...] = ()
        self.problems: Mapping[str, str] = {}
        """Why a tool of the server is not offered, by the server's name of it."""

    async def open(self) -> str:
        """Begin to connect; the error of the first attempt."""
        work = asyncio.run_coroutine_threadsafe(self._task.run(), self._thread.loop)
        self._running = asyncio.wrap_future(work)
        self._running.add_done_callback(self._log_defect)
        first = asyncio.wrap_future(self._task.first)
        await wait_first((first, self._running))
        if not first.done():
            return error_words(self._running.exception() or EOFError())
        await asyncio.sleep(0)  # What was reported before is called first.
        return first.result()

    # --- port SurfaceConnection ---

    @property
    def host(self) -> McpToolHost:
        return self._host

    @property
    def instructions(self) -> str:
        return self._task.instructions

    async def close(self) -> None:
        if self._running is None:
            return
        await self._on_loop(self._task.close())
        await asyncio.wait({self._running}, timeout=CLOSE_S)

    # --- for operators ---

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines of the server's standard error, and what became of its connection."""
        return self._access.log.lines

    # --- resources ---

    async def find_fault(self) -> str:
        """Its state says it."""
        return ""

    async def list_resources(self) -> tuple[ListedResource, ...]:
        return await self._on_loop(self._request(_listed_resources))

    async def read_resource(self, uri: str) -> tuple[SurfaceContent, ...]:
        async def read(session: ClientSession) -> CallResult:
            contents = resource_contents(await session.read_resource(uri))
            return scrub_result(CallResult(None, contents), self._access.scrubbers)

        found = await self._on_loop(self._request(read))
        return tuple(
            SurfaceContent(one.ref.artifact_ref, one.ref.mime, one.data) for one in found.contents
        )

    async def _request(self, work: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Of the server, within a time limit; every failure is coded."""
        why = f"no answer within {READ_S:g} s"
        with anyio.move_on_after(READ_S):
            try:
                async with self._task.borrow(None) as live:
                    return await work(live.session)
            except CodedError:
                raise
            except (MCPError, ValidationError, RuntimeError, OSError) as error:
                why = self._access.scrub(error_words(error))
        raise Failed("SURFACE_UNAVAILABLE", f"{self._surface}: {why}")

    async def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop of the connections."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._thread.loop))

    def _log_defect(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled() and (error := ended.exception()) is not None:
            log.error("connection broke", extra={"surface": self._surface}, exc_info=error)
            self._apply(McpServerState.FAILED, "NODE_FAILED: see the log of the node", None)

    def _notify(self, state: McpServerState, error: str) -> None:
        """On the loop of the connections."""
        live = self._task.live
        listing = None if live is None else live.listing
        self._loop.call_soon_threadsafe(self._apply, state, error, listing)

    def _apply(self, state: McpServerState, error: str, listing: ToolListing | None) -> None:
        self.state = state
        if listing is not None:
            self.tools, self.problems = listing.surface_tools, listing.problems
        self._report(ConnectionReport(self._surface, self._digest, state, error))


async def _listed_resources(session: ClientSession) -> tuple[ListedResource, ...]:
    found: list[ListedResource] = []
    if session.server_capabilities is None or session.server_capabilities.resources is None:
        return ()
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await session.list_resources(params=types.PaginatedRequestParams(cursor=cursor))
        found += [
            ListedResource(one.uri, one.name, one.mime_type or "", one.size, one.description or "")
            for one in page.resources
        ]
        cursor = page.next_cursor
        if cursor is None or len(found) >= RESOURCES_MAX:
            break
    return tuple(found[:RESOURCES_MAX])
