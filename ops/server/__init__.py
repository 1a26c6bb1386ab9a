"""The server that a configuration means: how to reach it, and how to keep it running."""

from __future__ import annotations

from rookery.ops.server.realm_server import ConfiguredServer, RealmServer, ServerSupervisor

__all__ = ["ConfiguredServer", "RealmServer", "ServerSupervisor"]
