"""Gateways to other protocols: what ``rookery mcp`` and ``rookery a2a`` share, and one of the node.

agents_protocol.py the Synadia agent protocol, which a node itself speaks
realm_link.py      the connection to the realm, which outlives restarts
http_listener.py   the HTTP server, and the tokens of its clients; it needs an extra
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.ops.gateways.agents_protocol import AgentsProtocol
    from rookery.ops.gateways.http_listener import HttpAddress, TokenGuard, read_tokens, serve_app
    from rookery.ops.gateways.realm_link import RealmLink

__all__ = [
    "AgentsProtocol",
    "HttpAddress",
    "RealmLink",
    "TokenGuard",
    "read_tokens",
    "serve_app",
]

__getattr__ = lazy_names(
    __name__,
    {
        "agents_protocol": ("AgentsProtocol",),
        "http_listener": ("HttpAddress", "TokenGuard", "read_tokens", "serve_app"),
        "realm_link": ("RealmLink",),
    },
)
