"""``LiveCatalogue``: the realm's catalogue of surfaces as one node offers it.

Every node follows the catalogue's facts. It offers a change once it has read the tools of all its
surfaces; so nodes offer the same tools after the same fact.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from rookery.actors.surfaces.catalogue import Catalogue, CatalogueEntry, evolve_catalogue
from rookery.actors.surfaces.connections import ConnectionReport, SurfaceConnections
from rookery.actors.surfaces.connections.host_connections import LocalConnections
from rookery.actors.surfaces.surface_host import SurfaceHost
from rookery.actors.tools.attempts import CallSlots
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue, VisibleTools
from rookery.actors.tools.hosts import ToolHost
from rookery.bus.ports import Bus, EntityFollower, StoredMessage, TaskSet
from rookery.schemas.calls import VisibleSurfaces
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.facts.surface import REALM_KEY, CatalogueFact, Dropped
from rookery.schemas.surfaces import LOCAL, SurfaceKind, SurfaceTool

__all__ = ["LiveCatalogue", "build_tools"]

log = logging.getLogger(__name__)

FAMILY: Final = "surface"
RETRY_S: Final = 1.0
WAIT_S: Final = 10.0
_CODEC: FactCodec[CatalogueFact] = FactCodec(CatalogueFact)


class _BuiltSurface(NamedTuple):
    """The tools of an entry, as they were listed, and with their checks."""

    listed: tuple[SurfaceTool, ...]
    checked: tuple[CatalogueTool, ...]


class LiveCatalogue(EntityFollower):
    """One per node; used on the bus's loop."""

    name = "surfaces"
    when_unavailable = "the surfaces stay as they were"

    def __init__(
        self,
        bus: Bus,
        *,
        tools: ToolCatalogue,
        visible: VisibleTools,
        hosts: dict[str, ToolHost],
        own: Iterable[str],
        connections: Mapping[SurfaceKind, SurfaceConnections],
        slots: CallSlots,
        processes: int = 1,
    ) -> None:
        """``tools`` and ``hosts`` are the node's, which the catalogue adds to. ``own``: what this
        process serves itself. ``connections``: by kind, what opens them. ``processes``: of the
        node; each has its part of a tool's limits."""
        super().__init__(bus, EntityId(FAMILY, REALM_KEY))
        self.tools, self.visible, self.connections = tools, visible, dict(connections)
        if (functions := hosts.get(LOCAL)) is not None:
            self.connections[SurfaceKind.LOCAL] = LocalConnections(functions, tools)
        self._hosts, self._slots, self._processes = hosts, slots, processes
        self.own_surfaces = frozenset(own)
        self._known = self.offered = Catalogue()
        self._dropped: frozenset[str] = frozenset()
        """Surfaces that the catalogue had once."""
        self._surfaces: dict[str, SurfaceHost] = {}
        self._built: dict[tuple[str, str], _BuiltSurface] = {}
        """By surface and the digest of its tools."""
        self._pending: tuple[SurfaceHost, ...] = ()
        """Without a connection, although one was wanted."""
        self.refused: dict[str, str] = {}
        """By surface: why this node does not offer it."""
        self._prepared: dict[str, SurfaceHost] = {}
        self._sessions: set[str] = set()
        """Those that see surfaces of their own."""
        self.on_offered: Callable[[], None] = lambda: None
        """Called when the offered tools have changed."""
        self.reports: list[Callable[[ConnectionReport], None]] = []
        """Called with what connections report."""
        self._loading = False
        self._tasks = TaskSet()

    # --- what the node offers ---------------------------------------------------------------------

    def visible_to(self, session: str) -> VisibleSurfaces | UnsetType:
        """What a run of the session sees that starts now; unset if the realm has never had a
        surface."""
        offered = self.offered
        if not offered.sequence:
            return UNSET
        lists = (offered.listing,) if offered.entries else ()
        pending = [h.surface for h in self._pending if h.entry.only in ("", session)]
        return VisibleSurfaces(
            lists=lists,
            catalogued=offered.sequence,
            session=session if session in self._sessions else "",
            pending=tuple(pending),
            without=(LOCAL,) if offered.without_local else (),
        )

    def was_removed(self, surface: str) -> bool:
        """Whether the realm had the surface and has it no more."""
        return surface in self._dropped and not self._known.has(surface)

    def is_own(self, surface: str) -> bool:
        """Whether this process serves the surface itself."""
        return surface in self.own_surfaces

    def host(self, surface: str) -> SurfaceHost | None:
        return self._surfaces.get(surface)

    def tools_of(self, surface: str) -> tuple[CatalogueTool, ...]:
        """The surface's tools, as this node offers them."""
        return tuple(tool for tool in self.tools if tool.surface == surface)

    def prepare(self, host: SurfaceHost) -> None:
        """Use this connection for the entry that is about to be recorded."""
        self._prepared[host.surface] = host

    def take_prepared(self, surface: str) -> SurfaceHost | None:
        """A connection whose entry was not recorded."""
        return self._prepared.pop(surface, None)

    async def wait_for(self, sequence: int) -> None:
        """Wait until this node offers the catalogue of this change, or a later one."""
        if not await self.wait_until(lambda: self.offered.sequence >= sequence, WAIT_S):
            text = f"change {sequence} of the catalogue is recorded, and not offered"
            raise Failed("NODE_FAILED", text)

    # --- following --------------------------------------------------------------------------------

    def reset(self) -> None:
        self._known, self._dropped = Catalogue(), frozenset()

    def apply(self, stored: StoredMessage) -> None:
        for fact in _CODEC.decode(stored.body):
            self._known = evolve_catalogue(self._known, fact)
            if isinstance(fact, Dropped):
                self._dropped |= {fact.surface_id}
        if not self._loading:
            self._loading = True
            self._tasks.start(self._load())

    async def open(self) -> None:
        """Read the catalogue and the tools of its surfaces."""
        await super().open()
        await self.wait_until(lambda: not self._loading, WAIT_S)

    async def close(self) -> None:
        """Close all connections now: the node stops."""
        hosts, self._surfaces = [*self._surfaces.values(), *self._prepared.values()], {}
        await asyncio.gather(*(host.abandon() for host in hosts), return_exceptions=True)

    async def _load(self) -> None:
        """Read and offer what is known, until nothing newer is known."""
        try:
            while self.offered is not self._known:
                target = self._known
                try:
                    await self._read(target.entries.values())
                except CodedError as error:
                    log.warning("surfaces not read", extra={"code": error.code})
                    await asyncio.sleep(RETRY_S)
                    continue
                if target is self._known:
                    self._publish(target)
        finally:
            self._loading = False
            self.notify()

    async def _read(self, entries: Iterable[CatalogueEntry]) -> None:
        """Build the checks of tools that are new, on a thread."""
        for entry in entries:
            if (entry.surface, entry.tools) in self._built:
                continue
            listed = await self.visible.load_surface(entry.offered)
            surface, tools = entry.surface, tuple(one.tool for one in listed)
            try:
                kind = entry.source.kind
                built = await asyncio.to_thread(build_tools, surface, kind, tools)
            except Refused as refusal:  # A node of another version has accepted them.
                log.error("surface has no tools here", extra={"surface": surface, "why": refusal})
                built = ()
            self._built[surface, entry.tools] = _BuiltSurface(tools, built)

    def _publish(self, target: Catalogue) -> None:
        """Offer the entries, but for those whose names this node's own tools have."""
        offered: dict[str, CatalogueTool] = {}
        self.refused = {}
        for name, entry in sorted(target.entries.items()):
            tools = self._built[name, entry.tools].checked
            clash = next((t.available.name for t in tools if self._has(offered, t)), "")
            if clash:
                self.refused[name] = f"TOOL_NAME_CONFLICT: this node has its tool {clash} already"
                log.error("surface not offered", extra={"surface": name, "why": self.refused[name]})
                continue
            offered |= {tool.available.name: tool for tool in tools}
            for tool in tools:
                self._slots.declare(tool.capability, share=self._processes)
        self._connect(target)
        removed = frozenset(name for name in self._dropped if not target.has(name))
        self.tools.set_surfaces(offered.values(), removed)
        self.offered = target
        self._sessions = {entry.only for entry in target.entries.values()}
        known = {(name, entry.tools) for name, entry in target.entries.items()}
        self._built = {key: built for key, built in self._built.items() if key in known}
        self.notify()
        self.on_offered()

    def _has(self, offered: Mapping[str, CatalogueTool], tool: CatalogueTool) -> bool:
        name = tool.available.name
        return name in offered or self.tools.is_own(name)

    def _connect(self, target: Catalogue) -> None:
        """Replace the hosts of changed entries; earlier ones end their calls first."""
        for name in self._surfaces.keys() - target.entries.keys() | self.refused.keys():
            self._replace(name, None)
        for name, entry in target.entries.items():
            if name in self.refused:
                continue
            present, opened = self._surfaces.get(name), self._prepared.get(name)
            if opened is not None and opened.entry.source == entry.source:
                opened.entry = entry
                del self._prepared[name]
                self._replace(name, opened)
            elif present is None or not _keeps(present.entry, entry):
                known = self._built[name, entry.tools].listed
                opener = self.connections.get(entry.source.kind)
                self._replace(name, SurfaceHost(entry, known, opener, self.report))
            else:
                present.entry = entry

    def _replace(self, surface: str, host: SurfaceHost | None) -> None:
        earlier = self._surfaces.pop(surface, None)
        if earlier is not None:
            del self._hosts[surface]
            self._tasks.start(earlier.close())
        if host is not None:
            self._surfaces[surface] = self._hosts[surface] = host
            host.on_state = self._list_pending
        self._list_pending()

    def _list_pending(self) -> None:
        hosts = self._surfaces
        self._pending = tuple(hosts[name] for name in sorted(hosts) if hosts[name].is_pending)

    def report(self, report: ConnectionReport) -> None:
        """A connection has another state, or its server other tools."""
        for heard in self.reports:
            heard(report)


def _keeps(present: CatalogueEntry, entry: CatalogueEntry) -> bool:
    """Whether a connection serves the new entry. A worker's knows the tools of its entry."""
    if present.connection != entry.connection:
        return False
    return entry.source.kind is not SurfaceKind.WORKER or present.tools == entry.tools


def build_tools(
    surface: str, kind: SurfaceKind, tools: Iterable[SurfaceTool]
) -> tuple[CatalogueTool, ...]:
    """The tools with their checks; ``Refused`` if one is invalid."""
    return tuple(
        CatalogueTool.of(surface, tool.capability, awaited=tool.awaited, kind=kind)
        for tool in tools
    )
