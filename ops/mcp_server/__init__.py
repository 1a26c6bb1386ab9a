"""Rookery as an MCP server: ``rookery mcp``, by stdio or HTTP. It needs the extra ``rookery[mcp]``.

A request becomes a command or a query of ``rookery.bus.client``; this package has no other way into
the realm.

    standard_streams.py, http_transport.py   the two transports
    server.py          what the protocol asks for, and how errors look
    realm_tools.py     Rookery's own tools; arguments.py: what they take
    session_tools.py   the session's tools, each call a run
    run_follower.py    a run until it ends or parks; run_report.py: how clients see it
    resources.py       what is too long for an answer
    approver.py        the connection of an approver; the other is of ops/gateways
"""

from __future__ import annotations

from rookery.ops.mcp_server.approver import McpApprover
from rookery.ops.mcp_server.http_transport import HttpAccess, serve_http
from rookery.ops.mcp_server.server import RealmMcpServer
from rookery.ops.mcp_server.standard_streams import serve_stdio

__all__ = ["HttpAccess", "McpApprover", "RealmMcpServer", "serve_http", "serve_stdio"]
