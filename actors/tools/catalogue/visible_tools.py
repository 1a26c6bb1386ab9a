"""The tools of surfaces that a run sees: read from the blob store, by the digests in its start.

A run keeps the tools of its start, whatever its surfaces serve later. So a call is compared with
what is here, and refused if its surface has another tool of that name now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from rookery.actors.tools.validation.capability_checks import schema_digest
from rookery.bus.ports import BlobReader
from rookery.schemas.calls import AvailableTool, OfferedSurface, VisibleSurfaces
from rookery.schemas.errors import Failed
from rookery.schemas.surfaces import SurfaceTool

__all__ = [
    "ToolSet",
    "VisibleTool",
    "VisibleTools",
]

SETS_MAX: Final = 64
"""Sets of tools in memory; a parked run that resumes reads its own again."""
SURFACES_MAX: Final = 1_024
_decode_entries = msgspec.json.Decoder(list[OfferedSurface]).decode
_decode_tools = msgspec.json.Decoder(list[SurfaceTool]).decode
_encode = msgspec.json.encode


class VisibleTool(NamedTuple):
    """A tool of a surface, as it was listed."""

    surface: str
    kind: str
    """Of the surface; empty in lists of older versions."""
    available: AvailableTool
    tool: SurfaceTool


ToolSet = Mapping[str, VisibleTool]
"""By the names that programs use."""


class VisibleTools:
    """One per node; used on the bus's loop."""

    def __init__(self, blobs: BlobReader) -> None:
        self._blobs = blobs
        self._sets: dict[VisibleSurfaces, ToolSet] = {}
        self._surfaces: dict[str, tuple[SurfaceTool, ...]] = {}
        """By digest."""
        self._digests: dict[str, tuple[AvailableTool, ...]] = {}

    @staticmethod
    def encode_tools(tools: Sequence[SurfaceTool]) -> bytes:
        """The blob of a surface's tools; equal tools have equal bytes, whatever their order."""
        return _encode(sorted(tools, key=lambda tool: tool.capability.name))

    @staticmethod
    def encode_entries(entries: Sequence[OfferedSurface]) -> bytes:
        """The blob of a catalogue's entries."""
        return _encode(sorted(entries, key=lambda entry: entry.surface))

    def get(self, surfaces: VisibleSurfaces) -> ToolSet:
        """The tools of a run in progress; its execution has loaded them."""
        found = self._sets.get(_key(surfaces))
        if found is None:
            raise Failed("CONFLICT", "the tools of the run are not loaded any more")
        return found

    async def load(self, surfaces: VisibleSurfaces) -> ToolSet:
        """The tools, read from the blob store if need be."""
        key = _key(surfaces)
        found = self._sets.pop(key, None)
        if found is None:
            entries: dict[str, OfferedSurface] = {}
            for digest in surfaces.lists:
                listed = _decode_entries(await self._blobs.get(digest))
                entries |= {entry.surface: entry for entry in listed}
            found = {}
            for name, entry in sorted(entries.items()):
                if name not in surfaces.without and entry.only in ("", surfaces.session):
                    found |= {tool.available.name: tool for tool in await self.load_surface(entry)}
        self._sets[key] = found  # The newest are last.
        while len(self._sets) > SETS_MAX:
            del self._sets[next(iter(self._sets))]
        return found

    async def load_surface(self, entry: OfferedSurface) -> tuple[VisibleTool, ...]:
        """The tools of one entry of a catalogue."""
        digest = entry.tools
        if digest not in self._surfaces:
            tools = tuple(_decode_tools(await self._blobs.get(digest)))
            available = await asyncio.to_thread(lambda: tuple(map(_available, tools)))
            if len(self._surfaces) >= SURFACES_MAX:
                self._surfaces.clear()
                self._digests.clear()
            self._surfaces[digest], self._digests[digest] = tools, available
        pairs = zip(self._digests[digest], self._surfaces[digest], strict=True)
        return tuple(
            VisibleTool(entry.surface, entry.kind, available, tool) for available, tool in pairs
        )


def _key(surfaces: VisibleSurfaces) -> VisibleSurfaces:
    """The part that says which tools there are."""
    return VisibleSurfaces(lists=surfaces.lists, session=surfaces.session, without=surfaces.without)


def _available(tool: SurfaceTool) -> AvailableTool:
    return AvailableTool(
        name=tool.capability.name,
        schema_digest=schema_digest(tool.capability),
        side_effect=tool.capability.side_effect,
        awaited=tool.awaited,
    )
