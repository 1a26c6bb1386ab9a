"""The surfaces of a node: the realm's catalogue as it offers it, the verbs about it, and the
executor with which sessions take it up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from rookery.actors.credentials import CredentialSource
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, Failpoints, QueryHandler
from rookery.actors.resources import CapturedBytes, CaptureStore
from rookery.actors.slot_limits import declared_limits
from rookery.actors.surfaces import (
    CatalogueChanges,
    LiveCatalogue,
    SurfaceExecutor,
    WorkerConnections,
)
from rookery.actors.surfaces.connections import (
    SurfaceConnection,
    SurfaceConnections,
    SurfaceContent,
)
from rookery.actors.tools.attempts import CallSlots
from rookery.actors.tools.catalogue import ToolCatalogue, VisibleTools
from rookery.actors.tools.functions import LocalToolHost, RemoteToolHost
from rookery.actors.tools.hosts import ToolHost
from rookery.bus.client import Client
from rookery.bus.clock import SystemClock
from rookery.bus.ports import Bus, BusLoop, ValueSeal
from rookery.ops.leases import LeaseServices
from rookery.ops.mcp_client import McpConnections
from rookery.ops.processes import ProcessShare
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.resources import ResolvedResource
from rookery.schemas.seed.content import ContentScope
from rookery.schemas.seed.refs import TrustClass
from rookery.schemas.seed.resource import ResourceReadRequest, ResourceScheme
from rookery.schemas.surfaces import CatalogueReceipt, ChangeCatalogue, SurfaceKind, SurfaceSource

__all__ = ["SurfaceResolver", "SurfaceServices"]

ADD_S: Final = 60.0
"""How long a node that starts waits for the owner of the catalogue, which may have just ended."""
_CONFIGURATION: Final = "node.workers"
"""By whom a surface was added that a node was started with."""
JSON: Final = "application/json"
_SOURCE: Final = "session."


class SurfaceServices:
    """One per node that executes runs."""

    def __init__(
        self,
        bus: Bus,
        loop: BusLoop,
        *,
        tools: ToolCatalogue,
        local: LocalToolHost,
        others: Sequence[ToolHost],
        remote: Sequence[RemoteToolHost],
        share: ProcessShare,
        leases: LeaseServices,
        seal: ValueSeal,
    ) -> None:
        """``tools``, ``local`` and ``others``: the node's own, which the catalogue adds to.
        ``remote``: the surfaces on workers that the node shall have in the catalogue. ``leases``
        refuse tools whose credentials are not configured, and have those of servers; ``seal`` opens
        the hidden values of sources."""
        self._remote = remote
        declared = (*tools, *(tool for host in remote for tool in host.catalogue_tools))
        ToolCatalogue(declared)  # Refuses two tools of one name.
        leases.require_bindings(declared)
        self._bus, self._loop, self._share = bus, loop, share
        self._check, self._failpoints = leases.require_bindings, Failpoints()
        self._owns: Callable[[str], bool] = lambda _: False
        own: dict[str, ToolHost] = {host.surface: host for host in (*others, local)}
        self.tools, self.declared = tools, declared
        self.functions = ""
        """Digest of the list of the node's functions; empty if it has none."""
        self.hosts = {**{host.surface: host for host in remote}, **own}
        """Those of ``remote`` until the catalogue has them: calls of a former process may have to
        be followed at once."""
        self.slots = CallSlots(
            [tool.capability for tool in declared],
            loop,
            SystemClock().now_ms,
            share.slots,
            inline=_inline_tools(tools, local),
        )
        self.visible = VisibleTools(bus.blobs)
        self.live = LiveCatalogue(
            bus,
            tools=tools,
            visible=self.visible,
            hosts=self.hosts,
            own=own,
            connections=self._connections(seal, leases.node.credentials),
            slots=self.slots,
            processes=share.count,
        )

    async def open(self) -> None:
        """Offer the realm's catalogue. Of several processes, the supervisor allocates the slots of
        the node's own tools."""
        if self._share.slots is not None:
            on_notice = partial(self._loop.call_soon, self.slots.on_notice)
            self._share.slots.open(declared_limits(self.declared), on_notice)
        if functions := self.tools.functions:
            self.functions = await self._bus.blobs.put(VisibleTools.encode_tools(functions))
        await self.live.open()
        self.tools.expect(tool for host in self._remote for tool in host.catalogue_tools)

    async def add_remote(self, client: Client) -> None:
        """Let the realm's catalogue have the surfaces on workers that this node was started with,
        as the workers serve them now. To be called when the node serves; ``client`` asks the owner
        of the catalogue, if something is to be changed."""
        entries, add = self.live.offered.entries, dict[str, SurfaceSource]()
        for host in self._remote:
            entry, source = entries.get(host.surface), SurfaceSource(kind=SurfaceKind.WORKER)
            if entry is not None and entry.source.kind is not SurfaceKind.WORKER:
                raise Refused(
                    "CONFIG_INVALID",
                    f"node.workers: the realm has a surface {host.surface} already, of kind "
                    f"{entry.source.kind}",
                    hint=f"rookery surfaces remove {host.surface}, or serve the tools as another "
                    "surface",
                )
            served = digest_bytes(VisibleTools.encode_tools(host.surface_tools))
            if entry is None or entry.only or entry.tools != served:
                add[host.surface] = source
        if not add:
            return
        change = ChangeCatalogue(add=add, actor=_CONFIGURATION)
        async with client:
            answer = await client.ask("catalogue", REALM_KEY, change, timeout_s=ADD_S)
        receipt = msgspec.convert(answer, CatalogueReceipt)
        await self.live.wait_for(receipt.sequence)

    def queries(self, ask: AskActor) -> Mapping[str, QueryHandler]:
        """The verbs about the catalogue."""
        changes = CatalogueChanges(
            ask,
            self._bus.blobs,
            self.live,
            owns=self._acts_for,
            check=self._check,
            failpoint=self._hit,
        )
        return changes.queries

    def connect(
        self,
        ask: AskActor,
        acts_for: Callable[[str], bool],
        running: Callable[[], Iterable[str]],
        failpoints: Failpoints,
    ) -> Mapping[type[Effect], EffectHandler]:
        """Create the executor; the handler of each of its effects. ``running``: the sessions whose
        runs this node executes now."""
        self._owns, self._failpoints = acts_for, failpoints
        executor = SurfaceExecutor(
            ask=ask,
            timers=self._bus.timers,
            live=self.live,
            running=running,
            failpoints=failpoints,
        )
        return executor.handlers

    async def close(self) -> None:
        """Close all connections: the node stops."""
        await self.live.close()
        await self._mcp.close()

    def _connections(
        self, seal: ValueSeal, credentials: CredentialSource
    ) -> Mapping[SurfaceKind, SurfaceConnections]:
        """By kind, what connects to surfaces."""
        self._mcp = McpConnections(
            self._bus.blobs, seal=seal, credentials=credentials, environ=os.environ
        )
        workers = WorkerConnections(self._bus.tool_workers)
        mcp = dict.fromkeys((SurfaceKind.MCP_STDIO, SurfaceKind.MCP_HTTP), self._mcp)
        return {SurfaceKind.WORKER: workers, **mcp}

    def _acts_for(self, key: str) -> bool:
        return self._owns(key)

    def _hit(self, failpoint: str) -> None:
        self._failpoints.hit(failpoint)


def _inline_tools(catalogue: ToolCatalogue, local: LocalToolHost) -> frozenset[str]:
    """The tools that this process's loop calls itself."""
    offered = (tool.capability.name for tool in catalogue if tool.surface == local.surface)
    return local.inline.intersection(offered)


class SurfaceResolver:
    """Implements the port ``ResourceResolver``. What a server says is as foreign as its tools."""

    scheme = ResourceScheme("mcp")
    form = "mcp://<surface>/<the server's URI>"

    def __init__(self, live: LiveCatalogue, store: CaptureStore) -> None:
        self._live, self._store = live, store

    @property
    def names(self) -> tuple[str, ...]:
        """The surfaces that all sessions may read."""
        entries = self._live.offered.entries.values()
        return tuple(sorted(e.surface for e in entries if e.source.policy.resources and not e.only))

    async def resolve(self, request: ResourceReadRequest) -> ResolvedResource:
        """Read it from its server; without a URI, the list of what the server has."""
        surface, _, uri = request.uri.partition("://")[2].partition("/")
        budget = self._store.budget(request)
        connection = await self._connection(surface, request)
        found = await connection.read_resource(uri) if uri else await _listed(connection)
        data, mime = _one(found)
        captured = CapturedBytes(
            data[: budget + 1],
            ContentScope.EXTERNAL,
            TrustClass.EXTERNAL,
            mime=mime,
            name=request.uri,
        )
        return await self._store.store(request, self.scheme, captured)

    async def _connection(self, surface: str, request: ResourceReadRequest) -> SurfaceConnection:
        entry, host = self._live.offered.entries.get(surface), self._live.host(surface)
        session = request.source.id.as_str().removeprefix(_SOURCE)
        if entry is None or host is None or entry.only not in ("", session):
            known = ", ".join(self.names) or "none"
            raise Refused(
                "RESOURCE_NOT_FOUND",
                f"the realm has no surface {surface[:80]!r} to read from",
                hint=f"there are: {known[:400]}",
            )
        if not entry.source.policy.resources:
            raise Refused(
                "PERMISSION_DENIED",
                f"the policy of {surface} does not open its resources",
                hint='write "resources": true into its policy, and add it again',
            )
        return await host.connect()


async def _listed(connection: SurfaceConnection) -> Sequence[SurfaceContent]:
    return [SurfaceContent("", JSON, msgspec.json.encode(await connection.list_resources()))]


def _one(found: Sequence[SurfaceContent]) -> tuple[bytes, str]:
    """The bytes of a resource; of one with several parts a list of them."""
    if len(found) == 1:
        return found[0].data, found[0].mime
    return msgspec.json.encode(found), JSON
