"""The connection to one server: one task on a loop of its own, which connects, lists the tools, and
connects again with growing pauses when the connection is lost.

The SDK's scopes belong to the task that opened them, so this task alone opens and closes; calls
borrow the session while it is open. ``close`` ends it all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import mcp_types as types
from mcp.client import Client, ClientSession, IncomingMessage, Transport
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from rookery.actors.tools import ToolCredential
from rookery.bus.ports import Backoff
from rookery.ops.mcp_client.message_stream import MessageStream, ServerEnded, ServerFault
from rookery.ops.mcp_client.server_process import LINE_MAX
from rookery.ops.mcp_client.server_tasks import TaskExtension, creates_tasks, serves_tasks
from rookery.ops.mcp_client.server_tools import TOOLS_MAX, ToolListing, list_tools
from rookery.ops.mcp_client.source_access import SourceAccess
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import SurfaceSource

__all__ = ["LiveSession", "McpTask", "error_words"]

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 30.0
STABLE_S: Final = 10.0
"""A connection that was open so long may be made again at once."""
ABSENCE_S: Final = 10.0
"""How long a call waits while the connection is made again."""
RELIST_S: Final = 1.0
"""Between two lists, however often a server says that its tools have changed."""
PAGES_MAX: Final = 100
ERROR_MAX: Final = 500
CLIENT: Final = types.Implementation(name="rookery", version="1")

Notify = Callable[[McpServerState, str], None]


class LiveSession:
    """An open session with the server."""

    def __init__(self, session: ClientSession, generation: int, *, creates_tasks: bool) -> None:
        """``generation``: of the credential in the environment of the server's process.
        ``creates_tasks``: whether any call may go on as a task."""
        self.session, self.generation = session, generation
        self.creates_tasks = creates_tasks
        self.listing = ToolListing({}, {})
        self.listed_at_s = 0.0
        self.in_flight = 0
        self._lock = anyio.Lock()

    async def list_again(self, surface: str, source: SurfaceSource) -> bool:
        """List the tools, unless that begins meanwhile for another call; whether they have
        changed."""
        since_s = anyio.current_time()
        async with self._lock:
            if self.listed_at_s >= since_s:
                return False
            began_s = anyio.current_time()
            served = await _served_tools(self.session)
            known = self.listing
            self.listing = list_tools(surface, source, served, has_tasks=serves_tasks(self.session))
            self.listed_at_s = began_s
            return known.surface_tools != self.listing.surface_tools


async def _served_tools(session: ClientSession) -> list[types.Tool]:
    """All pages of the server's tools, and no more than can be offered."""
    capabilities = session.server_capabilities
    if capabilities is None or capabilities.tools is None:
        return []
    tools: list[types.Tool] = []
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await session.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
        tools += page.tools
        if page.next_cursor is None or len(tools) > TOOLS_MAX:
            return tools
        cursor = page.next_cursor
    raise ServerFault(f"lists its tools on more than {PAGES_MAX} pages")


class McpTask:
    """The task of one connection; lives on the loop of the connections."""

    def __init__(
        self, surface: str, source: SurfaceSource, access: SourceAccess, notify: Notify
    ) -> None:
        """``notify`` is called on any change of the state or of the tools."""
        self.surface, self.source, self.access = surface, source, access
        self._notify = notify
        self.live: LiveSession | None = None
        self.instructions = ""
        self._error = ""
        self._legacy = False
        """Whether the server ended when it was asked in the newer way."""
        self._changed = anyio.Event()
        self._wake = anyio.Event()
        self._is_closing = self._is_renewing = self._was_connected = False
        self._is_listed = True
        self._fault: ServerFault | None = None
        self._scope = anyio.CancelScope()
        self.on_task_change: Callable[[str], None] = lambda _: None
        """Called with the id of a task that the server says has changed."""
        self.first: Future[str] = Future()
        """The error of the first attempt to connect; empty if it was made."""

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def _has_ended_early(self) -> bool:
        """Whether the server has ended before it was connected."""
        return isinstance(self._fault, ServerEnded) and not self._was_connected

    # --- for calls ---

    async def wait_tool(self, name: str) -> None:
        """Wait until the server has the tool."""
        while self.live is None or name not in self.live.listing.tools:
            await self._changed.wait()

    @asynccontextmanager
    async def borrow(self, credential: ToolCredential | None) -> AsyncIterator[LiveSession]:
        """The open session. ``Failed`` if there is none for some time."""
        generation = self.access.generation_of(credential)
        if not self._has_session(generation):
            await self._wait_session(generation)
        live = self.live
        if live is None or self._is_closing or live.generation < generation:
            raise Failed("SURFACE_UNAVAILABLE", f"{self.surface} is not connected: {self._error}")
        live.in_flight += 1
        try:
            yield live
        finally:
            live.in_flight -= 1
            if self._is_renewing:
                self._wake.set()

    def _has_session(self, generation: int) -> bool:
        """Whether there is one with this credential, or a newer one."""
        return self.live is not None and self.live.generation >= generation

    async def _wait_session(self, generation: int) -> None:
        with anyio.move_on_after(ABSENCE_S):
            while not (self._has_session(generation) or self._is_closing):
                if self.live is not None:  # The credential was renewed since the server started.
                    self._is_renewing = True
                    self._wake.set()
                await self._changed.wait()

    async def list_again(self, live: LiveSession) -> None:
        """Make sure of the server's tools, such as before a call that was approved by their
        words."""
        if await live.list_again(self.surface, self.source):
            self._signal()
            self._notify(McpServerState.CONNECTED, "")

    def reconnect(self, why: str) -> None:
        """The session is of no use any more."""
        self._fail(ServerFault(why))

    # --- the task ---

    async def run(self) -> None:
        backoff = Backoff(PAUSE_S_MIN, PAUSE_S_MAX)
        while not self._is_closing:
            self._notify(McpServerState.PENDING_CONNECT, "")
            began_s = anyio.current_time()
            self._error = await self._attempt()
            if anyio.current_time() - began_s >= STABLE_S:
                backoff.reset()
            is_renewed, self._is_renewing = self._is_renewing, False
            if is_renewed and self._fault is None:
                continue  # The server starts again with its new credential.
            if not self.first.done():
                self.first.set_result(self._error)
            if self.is_closing:
                break
            self.access.log.add(f"rookery: {self._error}")
            self._notify(McpServerState.FAILED, self._error)
            with anyio.move_on_after(backoff.next_s()):
                while not self._is_closing:
                    await self._wake.wait()
                    self._wake = anyio.Event()
        self._set_live(None)
        self._notify(McpServerState.DISCONNECTED, "")

    async def close(self) -> None:
        """End the connection and its calls; the task ends afterwards."""
        self._is_closing = True
        self._wake.set()
        self._set_live(None)
        self._scope.cancel()

    async def _attempt(self) -> str:
        """Connect and serve until the end of the connection; why it ended."""
        self._fault, self._wake = None, anyio.Event()
        error = await self._serve_once()
        if self._has_ended_early() and not self._legacy:
            # Servers of the first years end when they are asked for anything before "initialize".
            self._legacy, self._fault = True, None
            error = await self._serve_once()
            self._legacy = not self._has_ended_early()
        return self.access.scrub(error)[:ERROR_MAX]

    async def _serve_once(self) -> str:
        self._was_connected = False
        limit_s = self.source.connect_timeout_ms / 1_000
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + limit_s) as scope:
                self._scope = scope
                credential = await self.access.read_credential()
                async with Client(
                    self._watched(self.access.transport(credential)),
                    client_info=CLIENT,
                    mode="legacy" if self._legacy else "auto",
                    message_handler=self._on_message,
                    cache=None,
                    extensions=[TaskExtension(self._task_changed)],
                ) as client:
                    generation = 0 if credential is None else credential.generation
                    live = LiveSession(
                        client.session, generation, creates_tasks=creates_tasks(client)
                    )
                    await live.list_again(self.surface, self.source)
                    scope.deadline = float("inf")
                    self.instructions = (client.instructions or "")[:ERROR_MAX]
                    self._connected(live)
                    await self._serve(client, live)
            if scope.cancelled_caught:
                return f"it did not connect within {limit_s:g} s{self.access.last_words()}"
        except Exception as error:
            if self._fault is None:
                return f"{error_words(error)}{self.access.last_words()}"
        finally:
            self._set_live(None)
            await self.access.report_rejected()
        return f"the server {self._fault}{self.access.last_words()}"

    @asynccontextmanager
    async def _watched(self, transport: Transport) -> AsyncIterator[tuple[Any, Any]]:
        """The transport; its faults end the connection."""
        async with transport as (received, outgoing):
            if isinstance(received, MessageStream):
                received.on_fault = lambda: self._fail(received.fault)
                self._fail(received.fault)
            try:
                yield received, outgoing
            finally:
                if isinstance(received, MessageStream):
                    received.on_fault = lambda: None  # That it ends now is no fault.

    async def _serve(self, client: Client, live: LiveSession) -> None:
        """Follow the changes of the server's tools until the connection ends."""
        capabilities = client.server_capabilities.tools
        async with anyio.create_task_group() as tasks:
            is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
            if is_modern and capabilities is not None and capabilities.list_changed:
                tasks.start_soon(self._listen, client)
            while not (self._is_closing or self._fault):
                await self._wake.wait()
                self._wake = anyio.Event()
                if self._is_renewing and not live.in_flight:
                    break
                if not self._is_listed:
                    self._is_listed = True
                    await anyio.sleep(max(0.0, live.listed_at_s + RELIST_S - anyio.current_time()))
                    await self.list_again(live)
            tasks.cancel_scope.cancel()

    async def _listen(self, client: Client) -> None:
        """Of newer servers: they say nothing unless they are asked to."""
        backoff = Backoff(RELIST_S, PAUSE_S_MAX)
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    async for _ in changes:
                        self._relist()
            except (MCPError, SubscriptionLost, TimeoutError):
                await anyio.sleep(backoff.next_s())
                self._relist()
            else:
                return

    async def _on_message(self, message: IncomingMessage) -> None:
        match message:
            case types.ToolListChangedNotification():
                self._relist()
            case types.LoggingMessageNotification(params=said):
                self.access.log.add(f"{said.level}: {str(said.data)[:LINE_MAX]}")

    def _task_changed(self, task: str) -> None:
        self.on_task_change(task)

    def _relist(self) -> None:
        self._is_listed = False
        self._wake.set()

    def _connected(self, live: LiveSession) -> None:
        self._was_connected = True
        self._error = ""
        self._set_live(live)
        self._notify(McpServerState.CONNECTED, "")
        if not self.first.done():
            self.first.set_result("")

    def _set_live(self, live: LiveSession | None) -> None:
        self.live = live
        self._signal()

    def _signal(self) -> None:
        """Wake those that wait for a change of the connection."""
        self._changed.set()
        self._changed = anyio.Event()

    def _fail(self, fault: ServerFault | None) -> None:
        if self._fault is None and fault is not None:
            self._fault = fault
            self._set_live(None)
            self._wake.set()


def error_words(error: BaseException) -> str:
    """What went wrong, for people; groups of errors have one at their bottom that says it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    match error:
        case CodedError():
            return f"{error.code}: {error.message}" + (f" ({error.hint})" if error.hint else "")
        case ServerFault():
            return f"the server {error}"
        case ValidationError():
            return "the server's answer is none of the protocol"
        case MCPError():
            return f"the server refused: {error.error.message}"
        case _:
            return str(error) or type(error).__name__
