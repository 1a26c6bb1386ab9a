"""An HTTP server on its own port: health pages, and webhook answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from rookery.bus.clock import monotonic_s
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = [
    "CONCURRENT_REQUESTS_MAX",
    "HealthServer",
    "HttpServer",
    "Page",
    "Probe",
    "probe_page",
]

# --- http server ----------------------------------------------------------------------------------

# Any client may connect, so each request has a short time to arrive and the server has few threads,
# one per request. Closing the server answers the requests it has read, then frees the port.


CONCURRENT_REQUESTS_MAX: Final = 16
READ_TIMEOUT_S: Final = 2.0
"""For a whole request to arrive, and for the client to read each part of the answer."""
TICK_S: Final = 0.05


class BoundedTcpServer(ThreadingTCPServer):
    """A bounded threading server; unlike http.server's, it does not ask the DNS for its name."""

    allow_reuse_address = True
    request_queue_size = CONCURRENT_REQUESTS_MAX
    daemon_threads = False  # Joined by server_close, so that answers under way are finished.

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._read_until_s: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        request, client_address = super().get_request()
        request.settimeout(READ_TIMEOUT_S)
        return request, client_address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Close the connection if all threads are busy; the client may try again."""
        with self._lock:
            is_free = len(self._read_until_s) < CONCURRENT_REQUESTS_MAX
            if is_free:
                self._read_until_s[request] = monotonic_s() + READ_TIMEOUT_S
        if is_free:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._read_until_s.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called at every tick."""
        self._shut_slow_requests(monotonic_s())

    def server_close(self) -> None:
        self._shut_slow_requests(float("inf"))
        super().server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that close the connection during the answer."""

    def _shut_slow_requests(self, now_s: float) -> None:
        """Stop reading requests whose time is over; their answers may still be sent."""
        with self._lock:
            for request, until_s in self._read_until_s.items():
                if until_s <= now_s:
                    with suppress(OSError):  # The client has closed it.
                        request.shutdown(socket.SHUT_RD)


class HttpServer:
    """Serves from its creation until ``close``."""

    def __init__(
        self,
        host: str,
        port: int,
        handler: type[BaseHTTPRequestHandler],
        *,
        what: str,
        hint: str,
    ) -> None:
        """``what``: the address's purpose; ``hint``: what to do if the address is in use."""
        try:
            self._server = BoundedTcpServer((host, port), handler)
        except OSError as error:
            raise Refused(
                "CONFIG_INVALID",
                f"{what} address {host}:{port} cannot be used: {error.strerror}",
                hint=hint,
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(TICK_S,), name=f"rookery-{what}", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Answer the requests already read, then free the port."""
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


# --- health ---------------------------------------------------------------------------------------

# The health pages of a node, for supervisors and load balancers.
#
# ``/livez`` says whether a restart would help, ``/readyz`` whether to send work to this node. A
# page has one JSON line per probe; its status is 200 if all probes are ok, else 503. ``/metrics``
# is the text of the metrics registry. ``ops/probes.py`` has the probes.


JSON_LINES = "application/x-ndjson"


class Probe(msgspec.Struct, frozen=True):
    """One condition and whether it holds."""

    name: str
    ok: bool
    detail: str = ""


class Page(msgspec.Struct, frozen=True):
    """The answer to a GET."""

    status: int
    content_type: str
    body: bytes


def probe_page(checks: Callable[[], Sequence[Probe]]) -> Callable[[], Page]:
    """A page of these probes; if they raise an error, the page has one failed probe."""

    def page() -> Page:
        try:
            probes = checks()
        except Exception as error:  # Whatever the error, the node is not healthy.
            probes = [Probe("probe", ok=False, detail=f"failed: {type(error).__name__}")]
        body = b"".join(encode_json(probe) + b"\n" for probe in probes)
        return Page(200 if all(probe.ok for probe in probes) else 503, JSON_LINES, body)

    return page


class HealthServer(HttpServer):
    """Serves pages; each request has its own thread."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], Page]]) -> None:
        hint = "choose another --metrics-port; 0 takes a free one"
        super().__init__(host, port, _handler(pages), what="metrics", hint=hint)


def _handler(pages: Mapping[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class PageHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0], _not_found)()
            self.send_response(page.status)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Log nothing: scrapers come every few seconds."""

    def _not_found() -> Page:
        return Page(404, "text/plain", (" ".join(sorted(pages)) + "\n").encode())

    return PageHandler
