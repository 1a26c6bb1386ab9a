"""The verbs ``catalogue`` and ``catalogued``: an operator changes the realm's catalogue, or lists
it.

Before a change is recorded, the node that owns the catalogue has listed the tools of each surface,
and compared their names with all others. So what is recorded can be offered by every node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from rookery.actors.kernel.executors import AskActor, QueryHandler
from rookery.actors.surfaces.catalogue import (
    Catalogue,
    CatalogueEntry,
    ReadCatalogue,
    RecordCatalogue,
)
from rookery.actors.surfaces.connections import ConnectionReport
from rookery.actors.surfaces.decider import CatalogueRecorded
from rookery.actors.surfaces.live_catalogue import FAMILY, LiveCatalogue, build_tools
from rookery.actors.surfaces.surface_host import SurfaceHost
from rookery.actors.surfaces.surface_list import list_surfaces, show_surface
from rookery.actors.tools.catalogue import CatalogueTool, VisibleTools
from rookery.bus.ports import Blobs, Delivery, TaskSet
from rookery.schemas.codec import decode_command
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.ids import check_client_session
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import (
    LOCAL,
    CatalogueQuery,
    CatalogueReceipt,
    ChangeCatalogue,
    SurfaceKind,
    SurfaceList,
    SurfaceSource,
    SurfaceTool,
    check_surface,
)

__all__ = ["CatalogueChanges"]

TRIES_MAX: Final = 5
CHANGES_MAX: Final = 64
"""Changes whose repetitions are recognised."""
TOOLS_MAX: Final = 5_000
"""Of all surfaces together."""
CONNECTED: Final = McpServerState.CONNECTED


class _Listed:
    """The tools of a surface that is to be added or reloaded."""

    def __init__(
        self, host: SurfaceHost, tools: tuple[SurfaceTool, ...], built: tuple[CatalogueTool, ...]
    ) -> None:
        self.host, self.tools, self.built, self.digest = host, tools, built, ""


class CatalogueChanges:
    """One per node; used on the bus's loop."""

    def __init__(
        self,
        ask: AskActor,
        blobs: Blobs,
        live: LiveCatalogue,
        *,
        owns: Callable[[str], bool],
        check: Callable[[Iterable[CatalogueTool]], None],
        failpoint: Callable[[str], None],
    ) -> None:
        """``owns``: whether this node owns a key. ``check`` refuses tools that no node could call,
        because their credentials are not configured. ``failpoint``: where a crash test kills."""
        self._ask, self._blobs, self._live, self._check = ask, blobs, live, check
        self._owns, self._hit = owns, failpoint
        self._lock = asyncio.Lock()
        self._changes: dict[str, asyncio.Task[CatalogueReceipt]] = {}
        """By the id of the command."""
        self._tasks = TaskSet()
        live.reports.append(self._on_report)

    @property
    def queries(self) -> Mapping[str, QueryHandler]:
        return {"catalogue": self.change, "catalogued": self.list}

    async def change(self, delivery: Delivery) -> CatalogueReceipt:
        """Record a change of the catalogue. When this returns, the node offers it; the others do
        as soon as the fact reaches them. A client repeats its request until it has the reply, and a
        server may take long to connect: the repetitions get the reply of the first."""
        _check_key(delivery.key)
        change = decode_command(delivery.body, ChangeCatalogue, content_type=delivery.content_type)
        if not (change.add or change.remove or change.reload):
            raise Refused("INVALID_ARGUMENT", "the change names no surface", hint=_HELP)
        under_way = self._changes.get(delivery.id)
        if under_way is None or (under_way.done() and under_way.exception() is not None):
            while len(self._changes) >= CHANGES_MAX:
                del self._changes[next(iter(self._changes))]
            named = replace(change, actor=change.actor or delivery.by)
            under_way = self._changes[delivery.id] = self._tasks.start(self._in_turn(named))
        return await asyncio.shield(under_way)

    async def list(self, delivery: Delivery) -> SurfaceList:
        """The surfaces of this node and of the catalogue, as this node has them."""
        _check_key(delivery.key)
        query = decode_command(delivery.body, CatalogueQuery, content_type=delivery.content_type)
        return await list_surfaces(self._live, query)

    # --- a change ---------------------------------------------------------------------------------

    async def _in_turn(self, change: ChangeCatalogue) -> CatalogueReceipt:
        async with self._lock:
            return await self._change(change)

    async def _change(self, change: ChangeCatalogue) -> CatalogueReceipt:
        known = await self._read()
        entries = self._entries(change, known)
        listed: dict[str, _Listed] = {}
        try:
            await self._list_tools(entries, listed)
            self._hit("catalogue_listed")
            for _ in range(TRIES_MAX):
                with suppress(_Changed):
                    return await self._record(change, known, listed)
                known = await self._read()
            raise Failed("CONFLICT", "the catalogue changes all the time")
        finally:
            for name in listed:
                if (host := self._live.take_prepared(name)) is not None:
                    self._tasks.start(host.abandon())

    async def _read(self) -> Catalogue:
        """The catalogue as it is, once this node offers it."""
        reply = await self._ask(FAMILY, REALM_KEY, ReadCatalogue(), CatalogueRecorded)
        await self._live.wait_for(reply.catalogue.sequence)
        return self._live.offered

    def _entries(self, change: ChangeCatalogue, known: Catalogue) -> Sequence[CatalogueEntry]:
        """The entries whose tools are to be listed; ``Refused`` for an unknown or invalid surface.
        To remove one again changes nothing: the client may not have had the first reply."""
        self._require_known(change, known)
        if change.session:
            check_client_session(change.session)
        for name, source in change.add.items():
            _check_source(name, source, change.session)
        reloaded = {name: known.entries[name] for name in change.reload}
        added = {
            name: CatalogueEntry(surface=name, source=source, tools="", only=change.session)
            for name, source in change.add.items()
        }
        return tuple({**reloaded, **added}.values())

    def _require_known(self, change: ChangeCatalogue, known: Catalogue) -> None:
        """Refuse the removal or reload of what the catalogue never had."""
        gone = {name for name in change.remove if self._live.was_removed(name)}
        if known.has(LOCAL):
            gone |= {LOCAL}.intersection(change.remove).difference(change.reload)
        for name in (*change.remove, *change.reload):
            if name in known.entries or name in gone:
                continue
            if self._live.is_own(name):
                raise Refused(
                    "INVALID_ARGUMENT",
                    f"{name} is of the process of its node, which has the same functions while it "
                    "runs",
                    hint="start the node again with other --tools; or let workers serve functions: "
                    "rookery tools serve, rookery surfaces add NAME --worker",
                )
            listed = ", ".join(sorted(known.entries)) or "none"
            raise Refused(
                "SURFACE_NOT_FOUND",
                f"the realm's catalogue has no surface {name[:80]!r}",
                hint=f"rookery surfaces list; there are: {listed[:400]}",
            )

    async def _list_tools(
        self, entries: Sequence[CatalogueEntry], listed: dict[str, _Listed]
    ) -> None:
        """Connect to all sources at once, and list their tools."""
        hosts = [self._host(entry) for entry in entries]
        for host in hosts:
            self._live.prepare(host)
            listed[host.surface] = _Listed(host, (), ())
        opened = await asyncio.gather(*(host.connect() for host in hosts), return_exceptions=True)
        for host, connection in zip(hosts, opened, strict=True):
            if isinstance(connection, BaseException):
                raise connection
            tools = tuple(connection.tools)
            built = await asyncio.to_thread(
                build_tools, host.surface, host.entry.source.kind, tools
            )
            self._check(built)
            one = listed[host.surface]
            one.tools, one.built = tools, built
            one.digest = await self._blobs.put(VisibleTools.encode_tools(tools))

    def _host(self, entry: CatalogueEntry) -> SurfaceHost:
        opener = self._live.connections.get(entry.source.kind)
        return SurfaceHost(entry, (), opener, self._live.report)

    async def _record(
        self, change: ChangeCatalogue, known: Catalogue, listed: Mapping[str, _Listed]
    ) -> CatalogueReceipt:
        """Record the change behind what is known; ``_Changed`` if there is more by now."""
        entries = {n: e for n, e in known.entries.items() if n not in change.remove}
        self._check_names(entries, listed)
        new = tuple(
            CatalogueEntry(
                surface=name,
                source=one.host.entry.source,
                tools=one.digest,
                sequence=known.sequence + 1,
                only=one.host.entry.only,
            )
            for name, one in sorted(listed.items())
            if name in change.reload or not _has(known, one)
        )
        entries |= {entry.surface: entry for entry in new}
        offered = [entry.offered for name, entry in entries.items() if name != LOCAL]
        listing = VisibleTools.encode_entries(offered)
        dropped = tuple(n for n in change.remove if known.has(n) and n not in listed)
        if not (new or dropped):
            return self._receipt(known.sequence, listed)
        record = RecordCatalogue(
            after=known.sequence,
            entries=new,
            dropped=dropped,
            reloaded=change.reload,
            listing=await self._blobs.put(listing),
            actor=change.actor,
        )
        try:
            reply = await self._ask(FAMILY, REALM_KEY, record, CatalogueRecorded)
        except Failed as failure:
            if failure.code == "CONFLICT":
                raise _Changed from None
            raise
        self._hit("catalogue_recorded")
        sequence = reply.catalogue.sequence
        await self._live.wait_for(sequence)
        return self._receipt(sequence, listed)

    def _receipt(self, sequence: int, names: Iterable[str]) -> CatalogueReceipt:
        offered = self._live.offered
        shown = tuple(show_surface(self._live, name) for name in sorted(names) if offered.has(name))
        return CatalogueReceipt(sequence=sequence, surfaces=shown)

    def _check_names(
        self, entries: Mapping[str, CatalogueEntry], listed: Mapping[str, _Listed]
    ) -> None:
        """Refuse a tool whose name another surface, or the node itself, has."""
        names = {
            tool.available.name: tool.surface
            for tool in self._live.tools
            if tool.surface not in listed and (tool.surface in entries or self._is_own(tool))
        }
        for surface, one in sorted(listed.items()):
            for tool in one.built:
                other = names.setdefault(tool.available.name, surface)
                if other != surface:
                    raise Refused(
                        "TOOL_NAME_CONFLICT",
                        f"{other} and {surface} both have a tool {tool.available.name}",
                        hint=f"add {surface} under another name",
                    )
        if len(names) > TOOLS_MAX:
            raise Refused(
                "QUOTA_EXCEEDED",
                f"the realm would have {len(names)} tools, the limit is {TOOLS_MAX}",
                hint="rookery surfaces remove NAME",
            )

    def _is_own(self, tool: CatalogueTool) -> bool:
        return self._live.tools.is_own(tool.available.name)

    # --- what connections report ------------------------------------------------------------------

    def _on_report(self, report: ConnectionReport) -> None:
        """List the tools anew if the connection has others than the catalogue."""
        if report.state is CONNECTED and self._owns(REALM_KEY):
            self._tasks.start(self._update(report.surface))

    async def _update(self, surface: str) -> None:
        host, entry = self._live.host(surface), self._live.offered.entries.get(surface)
        if host is None or entry is None:
            return
        try:
            tools = tuple((await host.connect()).tools)
            async with self._lock:
                digest = await self._blobs.put(VisibleTools.encode_tools(tools))
                entry = self._live.offered.entries.get(surface)
                if entry is None or entry.tools == digest or self._live.host(surface) is not host:
                    return
                kind = entry.source.kind
                built = await asyncio.to_thread(build_tools, surface, kind, tools)
                one = _Listed(host, tools, built)
                self._check(one.built)
                one.digest = digest
                with suppress(_Changed):
                    await self._record(ChangeCatalogue(), self._live.offered, {surface: one})
        except CodedError as error:
            host.error = f"{error.code}: {error.message}"


_HELP: Final = "rookery surfaces add NAME --worker, or remove NAME, or reload NAME"


class _Changed(Exception):
    """The catalogue changed after it was read."""


def _has(known: Catalogue, one: _Listed) -> bool:
    """Whether the catalogue has the surface with these tools already: to add it changes nothing."""
    entry, added = known.entries.get(one.host.surface), one.host.entry
    if added.surface == LOCAL:
        return known.has(LOCAL)
    return entry is not None and (entry.source, entry.tools, entry.only) == (
        added.source,
        one.digest,
        added.only,
    )


def _check_source(name: str, source: SurfaceSource, session: str) -> None:
    """Refuse a name that is the node's, and functions of a node that are added otherwise than back
    to the realm."""
    if name == LOCAL and source == SurfaceSource(kind=SurfaceKind.LOCAL) and not session:
        return
    check_surface(name)
    if source.kind is SurfaceKind.LOCAL:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{name} is of kind local, which only the surface {LOCAL} of all sessions is",
            hint=f"rookery up --tools MODULE:OBJECT; or: rookery surfaces add {LOCAL}",
        )


def _check_key(key: str) -> None:
    if key != REALM_KEY:
        raise Refused("INVALID_ARGUMENT", f"the key of the realm's catalogue is {REALM_KEY}")
