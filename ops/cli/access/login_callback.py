"""The loopback address where a browser comes back after a login, on the person's own machine.

It serves one login and judges nothing: what the browser brings goes to the provider, which knows
the login's state. Any program of the machine may call it, so it holds a few calls at most.
"""

from __future__ import annotations

import queue
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final

from rookery.ops.http_server import HttpServer

__all__ = ["LoginCallback"]

_PATH: Final = "/callback"
_CALLS_MAX: Final = 16
_QUERY_CHARACTERS_MAX: Final = 8_192
_PAGE: Final = b"<!doctype html><title>Rookery</title><p>You can close this page."


class LoginCallback(HttpServer):
    """Listens from its creation until ``close``."""

    def __init__(self, port: int) -> None:
        self._queries: queue.Queue[str] = queue.Queue(_CALLS_MAX)
        super().__init__(
            "127.0.0.1",
            port,
            _handler(self._queries),
            what="login-callback",
            hint="end the other login, or choose another redirect_port of the binding; 0: any",
        )

    @property
    def redirect_uri(self) -> str:
        """Where the authorization server is to send the browser."""
        return f"{self.url}{_PATH}"

    def wait(self, timeout_s: float) -> str | None:
        """The query of the next call; ``None`` if there is none in time. Blocks its thread."""
        try:
            return self._queries.get(timeout=timeout_s)
        except queue.Empty:
            return None


def _handler(queries: queue.Queue[str]) -> type[BaseHTTPRequestHandler]:
    class LoginCallbackHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path != _PATH or not query or len(query) > _QUERY_CHARACTERS_MAX:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            try:
                queries.put_nowait(query)
            except queue.Full:
                self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(_PAGE)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            self.wfile.write(_PAGE)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: the query has a code."""

    return LoginCallbackHandler
