"""The surfaces as one node has them: their tools, and the state of each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from rookery.actors.surfaces.catalogue import CatalogueEntry
from rookery.actors.surfaces.live_catalogue import LiveCatalogue
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import (
    LOCAL,
    CatalogueQuery,
    ListedSurface,
    SurfaceKind,
    SurfaceList,
    SurfaceSource,
)

__all__ = ["list_surfaces", "show_surface"]

CONNECTED: Final = McpServerState.CONNECTED
_OF_NODE: Final = SurfaceSource(kind=SurfaceKind.LOCAL)


async def list_surfaces(live: LiveCatalogue, query: CatalogueQuery) -> SurfaceList:
    """The surfaces in the process of this node and those of the catalogue, with their tools and
    connections as this node has them."""
    offered = live.offered
    entries = [
        offered.entries[name] for name in sorted(offered.entries) if query.surface in (None, name)
    ]
    if query.connect:
        hosts = [live.host(entry.surface) for entry in entries]
        opening = [host.connect() for host in hosts if host is not None]
        await asyncio.gather(*opening, return_exceptions=True)  # Each host has its error.
    faults = await _find_faults(live, entries)
    own = sorted(name for name in live.own_surfaces if query.surface in (None, name))
    shown = [_own_surface(live, name) for name in own]
    shown += [
        _catalogued_surface(live, entry, log=query.log, fault=faults.get(entry.surface, ""))
        for entry in entries
    ]
    return SurfaceList(sequence=offered.sequence, surfaces=tuple(shown))


async def _find_faults(live: LiveCatalogue, entries: Iterable[CatalogueEntry]) -> Mapping[str, str]:
    """By surface, why nothing serves it now, although it is connected."""
    hosts = [live.host(entry.surface) for entry in entries]
    connected = {
        host.surface: host.connection for host in hosts if host is not None and host.connection
    }
    found = await asyncio.gather(*(one.find_fault() for one in connected.values()))
    return dict(zip(connected, found, strict=True))


def show_surface(live: LiveCatalogue, name: str) -> ListedSurface:
    """A surface that the realm has."""
    entry = live.offered.entries.get(name)
    return _own_surface(live, name) if entry is None else _catalogued_surface(live, entry)


def _own_surface(live: LiveCatalogue, surface: str) -> ListedSurface:
    """A surface in the process of this node. An operator may have removed its functions."""
    offered, tools = live.offered, live.tools_of(surface)
    is_removed = surface == LOCAL and not offered.has(LOCAL)
    return ListedSurface(
        surface=surface,
        source=_OF_NODE,
        sequence=offered.local_sequence if surface == LOCAL else 0,
        tools=tuple(tool.available.name for tool in tools if not live.tools.is_withdrawn(tool)),
        state=McpServerState.DISCONNECTED if is_removed else CONNECTED,
        error=f"removed; to return it: rookery surfaces add {LOCAL}" if is_removed else "",
    )


def _catalogued_surface(
    live: LiveCatalogue, entry: CatalogueEntry, *, log: bool = False, fault: str = ""
) -> ListedSurface:
    host = live.host(entry.surface)
    connection = None if host is None else host.connection
    refused = live.refused.get(entry.surface, "")
    state = McpServerState.FAILED if host is None else host.state
    return ListedSurface(
        surface=entry.surface,
        source=entry.source,
        sequence=entry.sequence,
        session=entry.only,
        tools=tuple(tool.available.name for tool in live.tools_of(entry.surface)),
        state=McpServerState.DISCONNECTED if fault else state,
        error=refused or fault or ("" if host is None else host.error),
        problems={} if connection is None else dict(connection.problems),
        log=connection.log if log and connection is not None else (),
    )
