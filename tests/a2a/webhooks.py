"""A receiver of push notifications on loopback."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

__all__ = ["Webhook"]


class Pushed(NamedTuple):
    """One notification."""

    event: dict[str, Any]
    authorization: str
    token: str


class Webhook:
    """Takes what is sent to ``url``."""

    def __init__(self, *, refusals: int = 0) -> None:
        """``refusals``: how many notifications get a 503 first."""
        self.taken: list[Pushed] = []
        self.refused = 0
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if webhook.refused < refusals:
                    webhook.refused += 1
                    self.send_error(503)
                    return
                authorization = self.headers.get("Authorization", "")
                token = self.headers.get("X-A2A-Notification-Token", "")
                webhook.taken.append(Pushed(json.loads(body), authorization, token))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def has(self, state: str) -> bool:
        """Whether an update of the status to this state has come."""
        return any(
            one.event.get("statusUpdate", {}).get("status", {}).get("state")
            == f"TASK_STATE_{state}"
            for one in list(self.taken)
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
