"""An HTTP server on a port of its own, for what is asked of a node beside the bus.

Owns the socket, the threads and the end: what is under way is answered before the port is free.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Self

from rookery.schemas.errors import Refused

__all__ = ["Listening", "QuietServer"]


class QuietServer(ThreadingTCPServer):
    """Not http.server's own: that one asks the DNS for its name before it serves anything."""

    allow_reuse_address = True
    daemon_threads = False  # Joined by server_close: an answer under way is finished.

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up while it was answered is nobody's trouble."""


class Listening:
    """Serves from the moment it is made until it is closed."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[BaseHTTPRequestHandler],
        *,
        what: str,
        hint: str,
        server: type[QuietServer] = QuietServer,
    ) -> None:
        """``what`` the address is of, and the ``hint`` for whoever chose one that is taken."""
        try:
            self._server = server((host, port), handler)
        except OSError as error:
            raise Refused(
                "CONFIG_INVALID",
                f"{what} address {host}:{port} cannot be used: {error.strerror}",
                hint=hint,
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name=f"rookery-{what}", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Answer what has been asked, then free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
