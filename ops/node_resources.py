"""The tools and resources of a node by its configuration: what it offers to programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.resources import CaptureStore, ResourceReader, StaticContent, create_resolvers
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.agents import agent_tools
from rookery.actors.tools.builtin import built_in_tools, resource_tools
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.tools.functions import LocalToolHost
from rookery.bus.clock import entropy
from rookery.bus.ports import BLOB_BYTES_MAX, Bus
from rookery.bus.sealed_secrets import RingSeal
from rookery.ops.config import Config, StaticResource
from rookery.ops.keys import NodeSecrets
from rookery.ops.node_tools import mounts_of, registry_of, servers_of
from rookery.schemas.calls import RecordMode
from rookery.schemas.errors import Refused
from rookery.schemas.surfaces import RESOURCES

__all__ = ["NodeResources"]

FUNCTION_THREADS: Final = 16
"""For functions of the application; one that hangs takes no thread of a tool."""
CLOSE_S: Final = 1.0


class NodeResources(NamedTuple):
    """What the rest of the node uses."""

    registry: ToolRegistry
    """The functions of the configuration, with hooks and resources."""
    record_reads: RecordMode
    reader: ResourceReader
    store: CaptureStore
    hosts: Sequence[LocalToolHost]
    tools: Sequence[CatalogueTool]

    @classmethod
    async def open(
        cls,
        bus: Bus,
        config: Config,
        node_secrets: NodeSecrets,
        opened: ExitStack,
    ) -> NodeResources:
        """Store the static resources, and create the reader. Programs have its tools if they are
        switched on, or if the application has resources of its own."""
        functions, record_reads = registry_of(config.node), RecordMode(config.node.record_reads)
        seal = RingSeal(node_secrets.values, bus.realm, entropy)
        store = CaptureStore(bus.blobs, config.resources.max_bytes, seal)
        static = await _store_static(store, config.resources.static)
        pool = DaemonThreadPool(FUNCTION_THREADS)
        opened.callback(pool.shutdown)
        resolvers = create_resolvers(
            mounts_of(config.node),
            servers_of(config.node),
            static,
            functions.resources,
            threads=pool,
            store=store,
        )
        reader = ResourceReader(bus.journal, bus.blobs, store, seal, resolvers)
        if not (config.resources.tools or static or functions.resources):
            return cls(functions, record_reads, reader, store, (), ())
        tools = resource_tools(reader)
        host = LocalToolHost(tools, RESOURCES)
        opened.callback(host.close, CLOSE_S)
        offered = [CatalogueTool.of(RESOURCES, one.capability, awaited=True) for one in tools]
        return cls(functions, record_reads, reader, store, (host,), offered)

    def catalogue(self, of_peers: Sequence[CatalogueTool] = ()) -> ToolCatalogue:
        """The node's own functions, built-in tools, those for resources and for peers, and its
        agents."""
        local = ToolCatalogue.local(self.registry, self.record_reads)
        tools = [*local, *built_in_tools(self.registry), *self.tools, *of_peers]
        return ToolCatalogue([*tools, *agent_tools(self.registry.agents, tools)])


async def _store_static(
    store: CaptureStore, configured: Sequence[StaticResource]
) -> dict[str, StaticContent]:
    found: dict[str, StaticContent] = {}
    for one in configured:
        if one.name in found:
            raise Refused("CONFIG_INVALID", f"resources.static has {one.name!r} twice")
        data = _read(one)
        digest = await store.put(data, one.privacy)
        found[one.name] = StaticContent.of(
            one.file, digest, len(data), mime=one.mime, privacy=one.privacy
        )
    return found


def _read(one: StaticResource) -> bytes:
    place = Path(one.file).expanduser()
    try:
        with place.open("rb") as file:
            data = file.read(BLOB_BYTES_MAX + 1)
    except OSError as error:
        text = f"resources.static: {one.name}: {place}: {error.strerror}"
        raise Refused("CONFIG_INVALID", text, hint="file = a file of this machine") from None
    if len(data) > BLOB_BYTES_MAX:
        text = f"resources.static: {one.name}: {place} has more than {BLOB_BYTES_MAX} bytes"
        raise Refused("CONFIG_INVALID", text)
    return data
