"""The tools a node offers, by the names programs call them: fixed when it starts.

Whose tool it is and what was declared of it, with the checks made of that. Who calls, and where, is
not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.capability_checks import CallChecks, schema_digest
from rookery.schemas.calls import OfferedTool
from rookery.schemas.capability import Capability
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = ["LOCAL", "VisibleTool", "VisibleTools", "visible_name"]

LOCAL = "local"
"""The surface of functions in the node's own process."""


_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def visible_name(surface: str, tool: str) -> str:
    """What programs call a tool of a surface outside the node."""
    name = _NOT_IN_NAMES.sub("_", f"{surface}_{tool}")
    return f"_{name}" if name[0].isdigit() else name


class VisibleTool(NamedTuple):
    """One tool as programs see it."""

    surface: str
    offered: OfferedTool
    capability: Capability
    """Its name is the visible one."""
    checks: CallChecks

    @classmethod
    def of(cls, surface: str, capability: Capability, *, awaited: bool) -> VisibleTool:
        offered = OfferedTool(
            name=capability.name,
            schema_digest=schema_digest(capability),
            side_effect=capability.side_effect,
            awaited=awaited,
        )
        return cls(surface, offered, capability, CallChecks(capability))


class VisibleTools:
    """Sorted by name, no two of one name."""

    def __init__(self, tools: Iterable[VisibleTool] = ()) -> None:
        self._tools: dict[str, VisibleTool] = {}
        for tool in sorted(tools, key=lambda tool: tool.offered.name):
            if (other := self._tools.get(tool.offered.name)) is not None:
                raise Refused(
                    "TOOL_NAME_CONFLICT",
                    f"{other.surface} and {tool.surface} both have a tool {tool.offered.name}",
                    hint="rename one of them",
                )
            self._tools[tool.offered.name] = tool

    @classmethod
    def local(cls, registry: ToolRegistry) -> VisibleTools:
        """The tools of a registry in the node's own process."""
        return cls(
            VisibleTool.of(LOCAL, tool.capability, awaited=tool.async_mode) for tool in registry
        )

    def get(self, name: str) -> VisibleTool | None:
        return self._tools.get(name)

    def find(self, name: str) -> VisibleTool:
        """The tool a program calls by ``name``, or ``UNKNOWN_TOOL``."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            raise Refused(
                "UNKNOWN_TOOL", f"no tool is called {name[:80]!r}", hint=f"known: {known[:400]}"
            )
        return tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __iter__(self) -> Iterator[VisibleTool]:
        return iter(self._tools.values())

    @property
    def offered(self) -> tuple[OfferedTool, ...]:
        """What a run is told."""
        return tuple(tool.offered for tool in self)

    @property
    def catalogue_bytes(self) -> bytes:
        """What the tools declared, as the blob that ``Offer.catalogue`` names."""
        return encode_json([tool.capability for tool in self])  # Properties keep their order.
