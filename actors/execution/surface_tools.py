"""The tools of surfaces in the form that programs get: they are read once, not for each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import UNSET

from rookery.actors.protection import SensitiveParts, is_ever_allowed, sensitive_parts
from rookery.actors.sandbox import Tool
from rookery.actors.tools import ToolSet, VisibleTools
from rookery.schemas.calls import VisibleSurfaces

__all__ = ["SurfaceTools", "SurfaceToolsReader"]

SETS_MAX: Final = 64


class SurfaceTools(NamedTuple):
    """The tools of surfaces, as a run's program gets them."""

    tools: tuple[Tool, ...]
    sensitive: Mapping[str, SensitiveParts]

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
                by_mention=surfaces.by_mention or UNSET,
                capability=one.tool.capability,
            )
            for name, one in loaded.items()
        )
        parts = {name: sensitive_parts(one.tool.capability) for name, one in loaded.items()}
        return cls(tools, {name: found for name, found in parts.items() if found})


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
