"""A nats-server as a child process, and its store."""

from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.server.store import Store, check_usable, default_store, find_running

__all__ = [
    "EmbeddedServer",
    "Store",
    "check_usable",
    "default_store",
    "find_running",
    "find_server",
]
