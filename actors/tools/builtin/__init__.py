"""Built-in tools for files and HTTP, each limited by an allow-list."""

from rookery.actors.tools.builtin.allowlist import parse_url
from rookery.actors.tools.builtin.http_transport import (
    HttpExchange,
    HttpRequest,
    HttpResponse,
    HttpTransport,
    run_on_own_thread,
)

__all__ = [
    "HttpExchange",
    "HttpRequest",
    "HttpResponse",
    "HttpTransport",
    "parse_url",
    "run_on_own_thread",
]
