"""Built-in tools for files and HTTP, each limited by an allow-list."""

from rookery.actors.tools.builtin.http_transport import HttpExchange, HttpRequest, HttpTransport
from rookery.actors.tools.builtin.urls import parse_url

__all__ = [
    "HttpExchange",
    "HttpRequest",
    "HttpTransport",
    "parse_url",
]
