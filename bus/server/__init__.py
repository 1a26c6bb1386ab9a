"""A nats-server as a child process, and its store."""

from rookery.bus.server.mesh_links import (
    LinkFiles,
    MeshLink,
    link_config,
    make_links,
    read_link,
)
from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.server.store import (
    Store,
    check_usable,
    default_store,
    find_running,
)

__all__ = [
    "EmbeddedServer",
    "LinkFiles",
    "MeshLink",
    "Store",
    "check_usable",
    "default_store",
    "find_running",
    "find_server",
    "link_config",
    "make_links",
    "read_link",
]
