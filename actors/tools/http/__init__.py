"""Requests by HTTP to servers that the configuration allows: addresses, redirects and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.http.allowlist import parse_url
    from rookery.actors.tools.http.http_transport import (
        HttpExchange,
        HttpRequest,
        HttpResponse,
        HttpTransport,
    )

__all__ = ["HttpExchange", "HttpRequest", "HttpResponse", "HttpTransport", "parse_url"]

__getattr__ = lazy_names(
    __name__,
    {
        "allowlist": ("parse_url",),
        "http_transport": ("HttpExchange", "HttpRequest", "HttpResponse", "HttpTransport"),
    },
)
