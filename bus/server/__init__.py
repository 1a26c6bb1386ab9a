"""A nats-server as a child process, and its store."""

from __future__ import annotations

from rookery.bus.server.server import EmbeddedServer, find_server
from rookery.bus.server.store import Store

__all__ = ["EmbeddedServer", "Store", "find_server"]
