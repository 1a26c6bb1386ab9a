"""The tools of a run in the form that programs get; those of surfaces are read once, not for each
run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.policy import PolicySubject, RunPolicy
from rookery.actors.protection.checks import is_ever_allowed
from rookery.actors.protection.sensitive_values import SensitiveParts, sensitive_parts
from rookery.actors.sandbox import Tool
from rookery.actors.tools.catalogue import ToolSet, VisibleTool, VisibleTools
from rookery.schemas.calls import AvailableTool, Capability, VisibleSurfaces
from rookery.schemas.protection.policy import RuleDecision
from rookery.schemas.surfaces import SurfaceKind

__all__ = ["SurfaceTools", "SurfaceToolsReader", "node_tool"]

SETS_MAX: Final = 64


class SurfaceTools(NamedTuple):
    """The tools of surfaces, as a run's program gets them."""

    tools: tuple[Tool, ...]
    sensitive: Mapping[str, SensitiveParts]
    listed: ToolSet

    def judged_by(self, policy: RunPolicy) -> tuple[Tool, ...]:
        """The tools, with what the policy decides about all calls of each."""
        if not policy.digest:
            return self.tools
        return tuple(
            replace(tool, decision=_decision(policy, self.listed[tool.name])) for tool in self.tools
        )

    @classmethod
    def of(cls, loaded: ToolSet, surfaces: VisibleSurfaces) -> SurfaceTools:
        """The rights that the run started with hide what they never allow."""
        rights = surfaces.rights
        tools = tuple(
            Tool(
                name=name,
                awaited=one.available.awaited,
                side_effect=one.available.side_effect,
                schema_digest=one.available.schema_digest,
                hidden=bool(rights)
                and not is_ever_allowed(rights, name, one.surface, one.available.side_effect),
                of_surface=True,
                pending=one.surface in surfaces.pending,
                by_mention=surfaces.by_mention or UNSET,
                capability=one.tool.capability,
            )
            for name, one in loaded.items()
        )
        parts = {name: sensitive_parts(one.tool.capability) for name, one in loaded.items()}
        return cls(tools, {name: found for name, found in parts.items() if found}, loaded)


def node_tool(offered: AvailableTool, declared: Capability | None) -> Tool:
    """A tool of the node's own; ``declared``: as it was when the run started."""
    return Tool(
        name=offered.name,
        awaited=offered.awaited,
        side_effect=offered.side_effect,
        schema_digest=offered.schema_digest,
        hidden=offered.hidden is True,
        decision=offered.decision or "",
        capability=declared,
    )


def _decision(policy: RunPolicy, listed: VisibleTool) -> str:
    kind = SurfaceKind(listed.kind) if listed.kind else SurfaceKind.WORKER
    capability = listed.tool.capability
    subject = PolicySubject.of(listed.surface, kind, capability, by_scheme=False)
    decision = policy.judge(subject).decision
    return "" if decision is RuleDecision.ALLOW else decision.value


class SurfaceToolsReader:
    """Lives on the bus's loop."""

    def __init__(self, visible: VisibleTools) -> None:
        self._visible = visible
        self._sets: dict[VisibleSurfaces, SurfaceTools] = {}

    async def read(self, surfaces: VisibleSurfaces) -> SurfaceTools:
        """The tools that a run sees; the rules of its calls have them afterwards."""
        loaded = await self._visible.load(surfaces)
        found = self._sets.get(surfaces)
        if found is None:
            if len(self._sets) >= SETS_MAX:
                self._sets.clear()
            found = self._sets[surfaces] = SurfaceTools.of(loaded, surfaces)
        return found
