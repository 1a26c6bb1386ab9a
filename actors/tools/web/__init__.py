"""Tools for HTTP, for servers that the operator allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.web.http import Allowed, HttpCredential, HttpReader, http_tools

__all__ = ["Allowed", "HttpCredential", "HttpReader", "http_tools"]

__getattr__ = lazy_names(
    __name__,
    {
        "http": (
            "Allowed",
            "HttpCredential",
            "HttpReader",
            "http_tools",
        ),
    },
)
