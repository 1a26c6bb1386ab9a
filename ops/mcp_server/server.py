"""The MCP server of a realm: which tools and resources it has, and how errors look.

It speaks both eras of the protocol, by the official SDK.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError

from rookery.bus.clock import monotonic_s
from rookery.bus.event_loop import TaskSet
from rookery.bus.roles import Role
from rookery.ops.config import Config
from rookery.ops.gateways import RealmLink
from rookery.ops.mcp_server.approver import McpApprover
from rookery.ops.mcp_server.realm_tools import RealmTool, RealmTools
from rookery.ops.mcp_server.resources import RESOURCE_TEMPLATES, list_results, read_resource
from rookery.ops.mcp_server.run_follower import ProgressReporter, RunFollower
from rookery.ops.mcp_server.run_report import RunReport, ValidationReport, error_report
from rookery.ops.mcp_server.session_tools import SessionTool, call_program, read_session_tools
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.replies import RunState
from rookery.schemas.run import RunStatus

__all__ = ["RealmMcpServer"]

log = logging.getLogger(__name__)

CALLS_MAX: Final = 256
"""Calls under way; one more is refused."""
PAGE_TOOLS: Final = 200
"""Of the session's tools, in one answer."""
TOOLS_POLL_S: Final = 5.0
POLL_SHARE: Final = 100
"""To look for changed tools takes at most one part in so many of the time."""
SUBSCRIPTIONS_MAX: Final = 256
INSTRUCTIONS: Final = """\
Rookery runs programs in a sandbox and records every call of a tool before it is made.
run_code runs a program in a session; the session's tools are also tools of this server.
If an answer has `waits_for`, the run is parked: tell the user what it waits for and the command \
in it, and call runs_result with its run_id later. Do not repeat the call.
"""

Context = Any
"""``ServerRequestContext`` of the SDK, whose type is generic in what this server does not use."""


class RealmMcpServer:
    """One realm for MCP clients, with one session for their programs and calls."""

    def __init__(self, config: Config, session: str, approver: McpApprover | None = None) -> None:
        self._session, self._approver = session, approver
        self._link = RealmLink(config, Role.CLIENT)
        self._follower = RunFollower(self._link)
        self._own = RealmTools(self._link, self._follower, session, approver).by_name
        self._offered: tuple[types.Tool, ...] = ()
        """The session's tools as they were read last."""
        self._calls = 0
        self._events = InMemorySubscriptionBus()
        self._listener: Any = None
        """The client that has listed the tools last, which gets a notification when they change;
        clients of the newer era subscribe."""
        self.protocol: Server[Any] = Server(
            "rookery",
            version=importlib.metadata.version("rookery"),
            instructions=INSTRUCTIONS,
            get_tool_input_schema=_no_header_arguments,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=_list_resource_templates,
            on_read_resource=self._read_resource,
            on_subscriptions_listen=ListenHandler(
                self._events, max_subscriptions=SUBSCRIPTIONS_MAX
            ),
        )

    @property
    def initialization(self) -> InitializationOptions:
        """What a client by stdio gets to know."""
        changes = NotificationOptions(tools_changed=True)
        return self.protocol.create_initialization_options(changes)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve in this block; afterwards the connections to the realm are closed."""
        watch = TaskSet()
        watch.start(self._watch_tools())
        try:
            yield
        finally:
            self.stop()
            await watch.cancel()
            await self._follower.close()
            await self._link.close()
            if self._approver is not None:
                await self._approver.close()

    def stop(self) -> None:
        """From now on requests end because the server stops: their runs continue."""
        self._follower.is_closing = True

    # --- tools ------------------------------------------------------------------------------------

    async def _list_tools(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Rookery's own tools, then those of the session by name; a cursor is the last name."""
        cursor = None if params is None else params.cursor
        try:
            await self._refresh()
        except CodedError as error:  # Until the realm is back, the list is that of before.
            log.warning("tools of the session not listed", extra={"reason": error})
        self._listener = context.session
        own = [_tool_of(tool) for tool in self._own.values()] if cursor is None else []
        offered = [tool for tool in self._offered if cursor is None or tool.name > cursor]
        page = offered[:PAGE_TOOLS]
        more = page[-1].name if len(offered) > len(page) else None
        return types.ListToolsResult(tools=[*own, *page], next_cursor=more)

    async def _call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        wants_progress = bool(context.meta) and "progress_token" in context.meta
        send = partial(_send_progress, context) if wants_progress else None
        self._calls += 1
        try:
            if self._calls > CALLS_MAX:
                raise Failed("NODE_OVERLOADED", f"{CALLS_MAX} calls are under way here")
            progress = ProgressReporter(send)
            return _call_result(await self._act(params.name, params.arguments or {}, progress))
        except CodedError as error:
            return _error_result(error)
        finally:
            self._calls -= 1

    async def _act(
        self, name: str, arguments: dict[str, Any], progress: ProgressReporter
    ) -> msgspec.Struct:
        if (own := self._own.get(name)) is not None:
            return await own.call(arguments, progress)
        tools = await read_session_tools(await self._link.client(), self._session, name)
        if not tools:
            raise Refused(
                "UNKNOWN_TOOL",
                f"no tool {name[:80]!r} here",
                hint="tools/list; or the rights of the session do not cover it",
            )
        tool = tools[0]
        fields = {
            "code": call_program(tool, arguments),
            "language": tool.language,
            "timeout_ms": tool.timeout_ms,
        }
        return await self._follower.run(self._session, fields, progress)

    async def _refresh(self) -> None:
        """Read the session's tools, and tell clients if they are others than before."""
        tools = await read_session_tools(await self._link.client(), self._session)
        named = [one for one in tools if one.name not in self._own and not one.is_sensitive]
        offered = tuple(map(_tool_of, sorted(named, key=lambda tool: tool.name)))
        if offered == self._offered:
            return
        self._offered = offered
        if self._listener is not None:
            await self._events.publish(ToolsListChanged())
            await self._listener.send_tool_list_changed()

    async def _watch_tools(self) -> None:
        pause_s = TOOLS_POLL_S
        while True:
            await asyncio.sleep(pause_s)
            begun_s = monotonic_s()
            if self._listener is not None:
                with suppress(CodedError):
                    await self._refresh()
            pause_s = max(TOOLS_POLL_S, POLL_SHARE * (monotonic_s() - begun_s))

    # --- resources --------------------------------------------------------------------------------

    async def _list_resources(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        with _protocol_errors():
            return await list_results(await self._link.client(), self._session)

    async def _read_resource(
        self, _context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        with _protocol_errors():
            return await read_resource(await self._link.client(), str(params.uri))


# --- words of the protocol ------------------------------------------------------------------------


async def _list_resource_templates(
    _context: Context, _params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=list(RESOURCE_TEMPLATES))


def _tool_of(tool: RealmTool | SessionTool) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=types.ToolAnnotations.model_validate(tool.hints),
    )


def _no_header_arguments(_name: str) -> None:
    """No argument of a tool is repeated in an HTTP header; else the SDK would list all tools before
    each call."""


async def _send_progress(context: Context, number: float, text: str) -> None:
    await context.session.report_progress(number, None, text)


def _call_result(reply: msgspec.Struct) -> types.CallToolResult:
    """A reply as structured content, and the same as text for clients without it."""
    content: list[types.ContentBlock] = [
        types.TextContent(text=encode_json(reply).decode()),
    ]
    is_error = False
    if isinstance(reply, ValidationReport):
        is_error = reply.status is not RunStatus.OK
    if isinstance(reply, RunReport):
        is_error = reply.status is not RunState.OK and reply.status.is_end
        content += [types.ResourceLink(name=name, uri=uri) for name, uri in _links(reply)]
    structured = msgspec.to_builtins(reply)
    return types.CallToolResult(content=content, structured_content=structured, is_error=is_error)


def _links(report: RunReport) -> Iterable[tuple[str, str]]:
    yield from (report.resources or {}).items()
    yield from ((one.path, one.uri) for one in report.artifacts or ())


def _error_result(error: CodedError) -> types.CallToolResult:
    report = error_report(error)
    text = f"{report.code}: {report.message}" + (f"\nhint: {error.hint}" if error.hint else "")
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        structured_content={"error": msgspec.to_builtins(report)},
        is_error=True,
    )


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """Coded errors in this block as errors of the protocol."""
    try:
        yield
    except CodedError as error:
        data = msgspec.to_builtins(error_report(error))
        message = f"{error.code}: {error.message}"
        raise MCPError(types.INVALID_PARAMS, message, data) from None
