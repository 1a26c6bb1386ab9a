"""Built-in tools for files, HTTP and resources, each limited by what the operator allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.builtin.allowlist import parse_url
    from rookery.actors.tools.builtin.files import Mounts, read_prefix
    from rookery.actors.tools.builtin.http import HttpReader
    from rookery.actors.tools.builtin.http_transport import (
        HttpExchange,
        HttpRequest,
        HttpResponse,
        HttpTransport,
    )
    from rookery.actors.tools.builtin.peers import peer_tools, peers_registry
    from rookery.actors.tools.builtin.resources import resource_tools

__all__ = [
    "HttpExchange",
    "HttpReader",
    "HttpRequest",
    "HttpResponse",
    "HttpTransport",
    "Mounts",
    "parse_url",
    "peer_tools",
    "peers_registry",
    "read_prefix",
    "resource_tools",
]

__getattr__ = lazy_names(
    __name__,
    {
        "allowlist": ("parse_url",),
        "files": ("Mounts", "read_prefix"),
        "http": ("HttpReader",),
        "http_transport": ("HttpExchange", "HttpRequest", "HttpResponse", "HttpTransport"),
        "peers": ("peer_tools", "peers_registry"),
        "resources": ("resource_tools",),
    },
)
