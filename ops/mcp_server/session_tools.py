"""The visible tools of a session as MCP tools; a call is a run of the session.

So it is journaled, approved and limited as any call of a program is.
"""

from __future__ import annotations

import asyncio
import keyword
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.protection.checks import is_ever_allowed
from rookery.actors.protection.sensitive_values import sensitive_parts
from rookery.bus.client import Client
from rookery.ops.mcp_server.arguments import hoist_definitions
from rookery.ops.mcp_server.run_report import PATIENCE_S
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ToolsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.replies import RunState, SessionView, ToolList, ToolView
from rookery.schemas.run import Language, SessionLimits, SideEffect

__all__ = ["SessionTool", "call_program", "read_session_tools"]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Of a tool, as MCP allows it."""
_MARGIN_MS: Final = 2_000
"""For a program around the time limit of its one call."""
_READS: Final = (SideEffect.NONE, SideEffect.READ)


class SessionTool(NamedTuple):
    """A tool that programs of the session can call."""

    view: ToolView
    language: Language
    """Of the session."""
    limits: SessionLimits

    @property
    def name(self) -> str:
        return self.view.capability.name

    @property
    def is_sensitive(self) -> bool:
        """Whether it takes or returns what no fact may show: a program that only makes the call
        would show it in its source, or as its result."""
        return bool(sensitive_parts(self.view.capability))

    @property
    def description(self) -> str:
        """What programs read, and what a client should know before it calls."""
        capability = self.view.capability
        notes = [f"side effect: {capability.side_effect.value}"]
        if capability.approval_policy != "none":
            notes.append("may wait for an approval")
        return f"{capability.description.strip()}\n({'; '.join(notes)})"

    @property
    def is_positional(self) -> bool:
        """Whether it has positional arguments: MCP tools have named ones, so they are ``args``."""
        schema = self.view.capability.input_schema
        return not isinstance(schema, Mapping) or schema.get("type") == "array"

    @property
    def input_schema(self) -> dict[str, Any]:
        schema = self.view.capability.input_schema
        if not self.is_positional:
            return {"type": "object", **schema}
        inner, definitions = hoist_definitions(schema)
        return {
            "type": "object",
            "properties": {"args": inner or {"type": "array"}},
            "required": ["args"],
            "additionalProperties": False,
            **definitions,
        }

    @property
    def output_schema(self) -> dict[str, Any]:
        """That of a run whose result is the tool's, in short: a session may have many tools."""
        inner, definitions = hoist_definitions(self.view.capability.output_schema)
        properties = {
            "run_id": {"type": "string"},
            "status": {"type": "string", "enum": sorted(RunState)},
            "result": inner,
            "error": {"type": "object"},
            "waits_for": {"type": "object"},
        }
        return {"type": "object", "properties": properties, **definitions}

    @property
    def hints(self) -> dict[str, bool]:
        capability = self.view.capability
        reads = capability.side_effect in _READS
        return {
            "read_only_hint": reads,
            "destructive_hint": not reads,
            "idempotent_hint": capability.idempotent,
            "open_world_hint": capability.side_effect not in (*_READS, SideEffect.WRITE),
        }

    @property
    def timeout_ms(self) -> int:
        """The time limit of a program with this one call."""
        return max(self.limits.wall_ms, self.view.capability.limits.timeout_ms + _MARGIN_MS)


async def read_session_tools(
    client: Client, session: str, name: str | None = None
) -> list[SessionTool]:
    """The tools of a node that the rights of the session allow, by name; or only that ``name``."""
    listed, view = await asyncio.gather(
        client.ask("tools", "all", ToolsQuery(name=name), timeout_s=PATIENCE_S),
        _find_session(client, session),
    )
    language, limits = Language.PYTHON, SessionLimits()
    rights: RightsSet = ()
    if view is not None:
        language, limits = view.meta.language, view.meta.limits
        rights = () if view.rights is UNSET else view.rights.rights
    return [
        SessionTool(tool, language, limits)
        for tool in msgspec.convert(listed, ToolList).tools
        if _NAME.fullmatch(tool.capability.name)
        and is_ever_allowed(rights, tool.capability.name, tool.surface, tool.capability.side_effect)
    ]


async def _find_session(client: Client, session: str) -> SessionView | None:
    """The session; ``None`` before its first run."""
    try:
        found = await client.ask("session", session, timeout_s=PATIENCE_S)
    except Refused as refusal:
        if refusal.code != "SESSION_NOT_FOUND":
            raise
        return None
    return msgspec.convert(found, SessionView)


# --- programs -------------------------------------------------------------------------------------


def call_program(tool: SessionTool, arguments: Mapping[str, Any]) -> str:
    """The program that calls the tool and whose result is the tool's."""
    if tool.is_sensitive:
        raise Refused(
            "UNSUPPORTED_FEATURE",
            f"{tool.name} has sensitive values, which facts about this call would show",
            hint="call it in a program that gets and uses them itself: run_code",
        )
    positional, awaits = _positional(tool, arguments), "await " if tool.view.awaited else ""
    if tool.language is Language.PYTHON:
        written = ", ".join(
            map(repr, positional) if positional is not None else _keywords(arguments)
        )
        return f"{awaits}{tool.name}({written})"
    if positional is None:
        positional = _in_order(tool, arguments)
    text = encode_json(encode_json(positional).decode()).decode()
    return f"{awaits}{tool.name}(...JSON.parse({text}))"


def _positional(tool: SessionTool, arguments: Mapping[str, Any]) -> Sequence[Any] | None:
    if not tool.is_positional:
        return None
    positional = arguments.get("args", [])
    if set(arguments) - {"args"} or not isinstance(positional, list):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{tool.name} has positional arguments",
            hint='pass them as a list: {"args": [...]}',
        )
    return positional


def _keywords(arguments: Mapping[str, Any]) -> Iterable[str]:
    """JSON as Python writes it."""
    if all(map(_is_keyword, arguments)):
        return [f"{name}={value!r}" for name, value in arguments.items()]
    return [f"**{dict(arguments)!r}"]


def _is_keyword(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _in_order(tool: SessionTool, arguments: Mapping[str, Any]) -> Sequence[Any]:
    """Named arguments by position, as TypeScript programs pass them."""
    names = list(tool.view.capability.input_schema.get("properties", {}))
    unknown = [name for name in arguments if name not in names]
    if unknown:
        raise Refused(
            "TYPE_ERROR",
            f"{tool.name} has no argument {unknown[0][:80]!r}",
            hint=f"it has {', '.join(names) or 'none'}",
        )
    count = max((names.index(name) + 1 for name in arguments), default=0)
    missing = [name for name in names[:count] if name not in arguments]
    if missing:
        raise Refused(
            "UNSUPPORTED_FEATURE",
            f"programs of a TypeScript session pass arguments by position, so {missing[0]!r} "
            f"cannot be left out before {names[count - 1]!r}",
            hint="pass it, or use a Python session: rookery mcp --session NAME",
        )
    return [arguments[name] for name in names[:count]]
