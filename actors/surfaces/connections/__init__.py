"""The port of connections to surfaces outside the node's own process, and those to workers.

``ops/mcp_client`` has those to MCP servers.
"""

from __future__ import annotations

from rookery.actors.surfaces.connections.connection_ports import (
    ConnectionReport,
    ListedResource,
    SurfaceConnection,
    SurfaceConnections,
    SurfaceContent,
)

__all__ = [
    "ConnectionReport",
    "ListedResource",
    "SurfaceConnection",
    "SurfaceConnections",
    "SurfaceContent",
]
