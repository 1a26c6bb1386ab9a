"""The tools a node offers, by the names programs call them, with their checks. Fixed when the node
starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.capability_checks import CapabilityChecks, schema_digest
from rookery.schemas.calls import AvailableTool, CallArguments
from rookery.schemas.capability import ApprovalMode, Capability, RecordMode
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = [
    "LOCAL",
    "CatalogueTool",
    "ToolCatalogue",
    "catalogue_name",
    "check_arguments",
    "check_surface",
    "ends_with_node",
    "requires_approval",
]

LOCAL = "local"
"""The surface of functions in the node's own process."""
_SURFACE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID_NAME_CHARACTER = re.compile(r"[^A-Za-z0-9_]")


def check_surface(surface: str) -> None:
    """Refuse an invalid name of a surface outside the node."""
    if not _SURFACE.fullmatch(surface):
        raise Refused(
            "INVALID_ARGUMENT",
            f"surface {surface[:80]!r} must be 1 to 64 letters, digits, '-' or '_'",
        )
    if surface == LOCAL:
        raise Refused("INVALID_ARGUMENT", f"{LOCAL} is the surface of each node's own functions")


def ends_with_node(surface: str) -> bool:
    """Whether the calls of a surface end with the process of their node, and end on time by its
    clock. A worker outlives the node, and has a grace period after the deadline."""
    return surface == LOCAL


def catalogue_name(surface: str, tool: str) -> str:
    """The visible name of a worker's tool."""
    name = _INVALID_NAME_CHARACTER.sub("_", f"{surface}_{tool}")
    return f"_{name}" if name[0].isdigit() else name


class CatalogueTool(NamedTuple):
    """One tool as programs see it."""

    surface: str
    available: AvailableTool
    capability: Capability
    """Its name is the visible one."""
    checks: CapabilityChecks
    waits_for: str = ""
    """What its calls wait for instead of an attempt; empty for a tool that is called."""

    @classmethod
    def of(cls, surface: str, capability: Capability, *, awaited: bool) -> CatalogueTool:
        """The tool of a surface. Calls of workers are recorded before they are made, because a
        worker recognises a repeated call by its attempt."""
        if surface != LOCAL:
            check_surface(surface)
            capability = replace(capability, record=UNSET)
        offered = AvailableTool(
            name=capability.name,
            schema_digest=schema_digest(capability),
            side_effect=capability.side_effect,
            awaited=awaited,
        )
        return cls(surface, offered, capability, CapabilityChecks(capability))


class ToolCatalogue:
    """Tools by name, sorted."""

    def __init__(self, tools: Iterable[CatalogueTool] = ()) -> None:
        self._tools: dict[str, CatalogueTool] = {}
        for tool in sorted(tools, key=lambda tool: tool.available.name):
            if (other := self._tools.get(tool.available.name)) is not None:
                raise Refused(
                    "TOOL_NAME_CONFLICT",
                    f"{other.surface} and {tool.surface} both have a tool {tool.available.name}",
                    hint="rename one of them",
                )
            self._tools[tool.available.name] = tool

    @classmethod
    def local(
        cls, registry: ToolRegistry, record_reads: RecordMode = RecordMode.AFTER
    ) -> ToolCatalogue:
        """The tools of a registry in the node's own process."""
        return cls(
            CatalogueTool.of(
                LOCAL,
                tool.capability
                if record_reads is RecordMode.AFTER
                else replace(tool.capability, record=UNSET),
                awaited=tool.async_mode,
            )
            for tool in registry
        )

    def get(self, name: str) -> CatalogueTool | None:
        return self._tools.get(name)

    def require(self, name: str) -> CatalogueTool:
        """The tool called ``name``; raises ``UNKNOWN_TOOL``."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            raise Refused(
                "UNKNOWN_TOOL", f"no tool is called {name[:80]!r}", hint=f"known: {known[:400]}"
            )
        return tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[CatalogueTool]:
        return iter(self._tools.values())

    @property
    def available_tools(self) -> tuple[AvailableTool, ...]:
        """The tools a run can call."""
        return tuple(tool.available for tool in self)

    @property
    def catalogue_bytes(self) -> bytes:
        """The capabilities, as the blob of ``RunEnvironment.catalogue``."""
        return encode_json([tool.capability for tool in self])  # Keeps the order of properties.


def check_arguments(tool: CatalogueTool, arguments: CallArguments) -> None:
    """Refuse arguments that do not match the schema or are too large."""
    tool.checks.check_arguments(arguments.args, arguments.kwargs)
    tool.checks.encode_request(arguments.args, arguments.kwargs)


def requires_approval(tool: CatalogueTool) -> bool:
    """Whether its calls need an approval."""
    return tool.capability.approval_policy is not ApprovalMode.NONE
