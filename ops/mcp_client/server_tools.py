"""The tools of a server, as the node offers them: by names that programs can use, with the policy
of the source. What a server says of its own tools is a claim and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import mcp_types as types
from msgspec import UNSET

from rookery.actors.tools.catalogue import CatalogueTool
from rookery.ops.mcp_client.foreign_schemas import affordable_schema
from rookery.schemas.calls import ApprovalMode, Capability, CapabilityLimits, is_python_identifier
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.run import SideEffect
from rookery.schemas.surfaces import SurfaceSource, SurfaceTool, ToolPolicy, catalogue_name

__all__ = ["TOOLS_MAX", "ServerTool", "ToolListing", "list_tools"]

TOOLS_MAX: Final = 1_000
NAME_MAX: Final = 128
DESCRIPTION_MAX: Final = 8_000
TIMEOUT_MS: Final = 60_000
"""Of a call, unless the policy says otherwise: a server may be a long way off."""
TASK_TIMEOUT_MS: Final = 86_400_000
"""Of a call that goes on as a task because its tool, or its server, has no other way."""


class ServerTool(NamedTuple):
    """A tool that can be called."""

    name: str
    """By which the server knows it."""
    tool: CatalogueTool
    has_output_schema: bool
    as_task: bool = False
    """Whether its calls go on as tasks of the server."""
    task_ms: int = TASK_TIMEOUT_MS
    """How long a task may take that the server has decided upon."""


class ToolListing(NamedTuple):
    """The tools of a server at one time."""

    tools: Mapping[str, ServerTool]
    """By the names that programs use."""
    problems: Mapping[str, str]
    """Why a tool is not offered, by the server's name of it."""

    @property
    def surface_tools(self) -> tuple[SurfaceTool, ...]:
        """As the catalogue of a realm has them. Programs await them: a server is never quick."""
        return tuple(
            SurfaceTool(capability=tool.tool.capability, awaited=True, served_as=tool.name)
            for tool in self.tools.values()
        )


def list_tools(
    surface: str, source: SurfaceSource, served: Iterable[types.Tool], *, has_tasks: bool = False
) -> ToolListing:
    """The tools that can be offered. A tool that cannot be is left out and named. ``has_tasks``:
    whether calls may go on as tasks of the server."""
    tools: dict[str, ServerTool] = {}
    problems: dict[str, str] = {}
    known: set[str] = set()
    policy = source.policy
    for tool in served:
        known.add(tool.name)
        if policy.allow and tool.name not in policy.allow:
            continue
        seen = catalogue_name(surface, tool.name)
        if len(tools) >= TOOLS_MAX:
            problems[_shown(tool.name)] = f"the server has more than {TOOLS_MAX} tools"
        elif (other := tools.get(seen)) is not None:
            problems[_shown(tool.name)] = (
                f"TOOL_NAME_CONFLICT: programs would call it {seen}, as the tool {other.name}"
            )
        else:
            try:
                tools[seen] = _server_tool(surface, source, tool, seen, has_tasks=has_tasks)
            except CodedError as error:
                problems[_shown(tool.name)] = f"{error.code}: {error.message}"
    for name in sorted({*policy.allow, *policy.tools} - known):
        problems[_shown(name)] = "the policy names it, and the server has no such tool"
    return ToolListing(dict(sorted(tools.items())), problems)


def _server_tool(
    surface: str, source: SurfaceSource, tool: types.Tool, seen: str, *, has_tasks: bool
) -> ServerTool:
    if not (is_python_identifier(seen) and len(seen) <= NAME_MAX):
        raise Refused("INVALID_TOOL_NAME", f"programs cannot call {seen[:200]!r}")
    support = tool.execution.task_support if tool.execution is not None else None
    if support == "required" and not has_tasks:
        raise Refused("UNSUPPORTED_FEATURE", "it runs as a task only, and its server has none")
    default, own = source.policy.default, source.policy.tools.get(tool.name, ToolPolicy())
    description = (tool.description or tool.title or "")[:DESCRIPTION_MAX]
    output = tool.output_schema
    usual_ms = TASK_TIMEOUT_MS if support == "required" else TIMEOUT_MS
    timeout_ms = _first(own.timeout_ms, default.timeout_ms, usual_ms)
    capability = Capability(
        name=seen,
        description=description,
        input_schema=_input_schema(tool, description),
        output_schema=_affordable(output, f"the output schema of {seen}"),
        side_effect=_first(own.side_effect, default.side_effect, SideEffect.EXTERNAL_SYSTEM),
        limits=CapabilityLimits(timeout_ms=timeout_ms),
        approval_policy=_first(own.approval, default.approval, ApprovalMode.MANUAL),
        idempotent=_first(own.idempotent, default.idempotent, False),  # noqa: FBT003 - a value.
        binding=source.binding or UNSET,
    )
    offered = CatalogueTool.of(surface, capability, awaited=True, kind=source.kind)
    # A call that may take long goes on without a slot, and whatever happens to this process.
    is_long = support == "optional" and timeout_ms > TIMEOUT_MS
    return ServerTool(
        tool.name,
        offered,
        has_output_schema=output is not None,
        as_task=has_tasks and (support == "required" or is_long),
        task_ms=_first(own.timeout_ms, default.timeout_ms, TASK_TIMEOUT_MS),
    )


def _input_schema(tool: types.Tool, description: str) -> dict[str, Any]:
    """With the words of the tool, so that the schema's digest covers them: an approval is for the
    tool that an approver has read of."""
    schema = _affordable(tool.input_schema, f"the input schema of {tool.name[:80]}")
    own = {"x-description": schema["description"]} if "description" in schema else {}
    words = {"description": description} if description else {}
    return {"type": "object", **schema, **own, **words}


def _affordable(schema: dict[str, Any] | None, what: str) -> dict[str, Any]:
    found: dict[str, Any] = affordable_schema(schema or {}, what)
    return found


def _first(own: Any, default: Any, usual: Any) -> Any:
    """What the policy says of the tool, or of all, or what holds without a policy."""
    return next((one for one in (own, default) if one is not None), usual)


def _shown(name: str) -> str:
    return name[:NAME_MAX]
