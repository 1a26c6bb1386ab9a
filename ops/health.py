"""The health pages of a node, for supervisors and load balancers.

``/livez`` says whether a restart would help, ``/readyz`` whether to send work to this node. A page
has one JSON line per probe; its status is 200 if all probes are ok, else 503. ``/metrics`` is the
text of the metrics registry. ``ops/probes.py`` has the probes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler

import msgspec

from rookery.ops.http_server import HttpServer
from rookery.schemas.codec import encode_json

__all__ = ["HealthServer", "Page", "Probe", "probe_page"]

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
