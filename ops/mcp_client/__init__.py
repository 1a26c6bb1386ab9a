"""The client of MCP servers: their configuration, and the connections of a node to them.

``configuration`` reads the files that people have, ``connections`` implements the port of the
surfaces. One ``connection`` is one task on a loop of its own; ``server_process`` and
``http_transport`` are the ways to a server, ``host`` makes calls of its tools. What a server sends
is bounded, and what it says of itself is a claim.
"""

from rookery.ops.mcp_client.configuration import sources_of
from rookery.ops.mcp_client.connections import McpConnections, require_mcp

__all__ = ["McpConnections", "require_mcp", "sources_of"]
