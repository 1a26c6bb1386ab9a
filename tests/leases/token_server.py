"""A small token server in a process of its own, which replaces the refresh token at each use.

    python -m tests.leases.token_server LIFETIME_S

It counts what it is asked, and ends with its standard input. A login by a device code is confirmed
at the second poll.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from urllib.request import urlopen

__all__ = ["FIRST_TOKEN", "TokenServer", "token_server"]

FIRST_TOKEN = "refresh-1"
TIMEOUT_S = 30
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
DEVICE = {"device_code": "canary-device", "user_code": "ABCD", "expires_in": 600, "interval": 1}


class _Tokens:
    """The state of the server."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s, self.number = lifetime_s, 1
        self.counts: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        self.lock = threading.Lock()

    def answer(self, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            grant, given = form["grant_type"][0], form.get("refresh_token", [""])[0]
            self.counts[grant] += 1
            if grant == DEVICE_GRANT and self.counts[grant] == 1:
                return 400, {"error": "authorization_pending"}
            if given:
                self.used[given] += 1
            if grant == "refresh_token" and given != f"refresh-{self.number}":
                return 400, {"error": "invalid_grant"}
            self.number += 1
            fresh = {
                "access_token": f"canary-access-{self.number}",
                "token_type": "Bearer",
                "expires_in": self.lifetime_s,
            }
            if grant in ("refresh_token", DEVICE_GRANT):
                fresh["refresh_token"] = f"refresh-{self.number}"
        return 200, fresh


class _Handler(BaseHTTPRequestHandler):
    tokens: _Tokens

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        if self.path == "/device":
            self._send(200, DEVICE | {"verification_uri": f"http://{self.headers['Host']}/confirm"})
            return
        self._send(*self.tokens.answer(form))

    def do_GET(self) -> None:
        tokens = self.tokens
        self._send(200, {"counts": tokens.counts, "used": tokens.used})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
        except OSError:
            """The node that asked is gone."""

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


class TokenServer:
    """What a test knows of the server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def state(self) -> dict[str, dict[str, int]]:
        with urlopen(self.url, timeout=TIMEOUT_S) as answer:
            found: dict[str, dict[str, int]] = json.load(answer)
            return found

    @property
    def used(self) -> dict[str, int]:
        """How often each refresh token was used."""
        return self.state()["used"]


@contextmanager
def token_server(lifetime_s: float) -> Iterator[TokenServer]:
    """A server for this block, whose access tokens live so long."""
    command = [sys.executable, "-m", "tests.leases.token_server", str(lifetime_s)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin:
            yield TokenServer(process.stdout.readline().strip())


def _serve(lifetime_s: float) -> None:
    _Handler.tokens = _Tokens(lifetime_s)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    _serve(float(sys.argv[1]))
