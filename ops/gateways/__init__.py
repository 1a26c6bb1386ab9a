"""What the gateways to other protocols share: ``rookery mcp`` and ``rookery a2a``.

realm_link.py      the connection to the realm, which outlives restarts
http_listener.py   the HTTP server, and the tokens of its clients; it needs an extra
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.ops.gateways.http_listener import HttpAddress, TokenGuard, read_tokens, serve_app
    from rookery.ops.gateways.realm_link import RealmLink

__all__ = ["HttpAddress", "RealmLink", "TokenGuard", "read_tokens", "serve_app"]

__getattr__ = lazy_names(
    __name__,
    {
        "http_listener": ("HttpAddress", "TokenGuard", "read_tokens", "serve_app"),
        "realm_link": ("RealmLink",),
    },
)
