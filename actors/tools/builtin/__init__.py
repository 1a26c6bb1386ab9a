"""Built-in tools for files and HTTP, each limited by an allow-list."""

from rookery.actors.tools.builtin.http_transport import (
    HttpExchange,
    HttpRequest,
    HttpResponse,
    HttpTransport,
    run_on_own_thread,
)
from rookery.actors.tools.builtin.urls import parse_url

__all__ = [
    "HttpExchange",
    "HttpRequest",
    "HttpResponse",
    "HttpTransport",
    "parse_url",
    "run_on_own_thread",
]
