"""The server by HTTP: a token in every request, and no requests of foreign web pages."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware

from rookery.ops.mcp_server.server import RealmMcpServer
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = ["HttpAccess", "HttpAddress", "read_token", "serve_http"]

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
SESSIONS_MAX: Final = 100
"""Of clients of the older era; those of the newer one have none."""
SESSION_IDLE_S: Final = 1_800.0
CONNECTIONS_MAX: Final = 256
BODY_BYTES_MAX: Final = 16 << 20
STOP_S: Final = 2
"""For answers under way when the server stops."""
TOKEN_CHARS_MIN: Final = 16
_FILE_BYTES_MAX: Final = 4_096
_GROUP_OR_OTHER: Final = stat.S_IRWXG | stat.S_IRWXO
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "::1")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_NEW_TOKEN: Final = "(umask 077; openssl rand -hex 32 > FILE)"  # noqa: S105 - a command.

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


class HttpAddress(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> HttpAddress:
        """``HOST:PORT``, ``[::1]:PORT`` or ``PORT`` alone, which is on this machine."""
        host, colon, port = text.rpartition(":")
        if not port.isdecimal() or int(port) > 65_535 or (colon and not host):
            raise Refused(
                "INVALID_ARGUMENT", f"--http: {text[:80]!r} is not HOST:PORT", hint="--http 8765"
            )
        return cls(host.strip("[]") or "127.0.0.1", int(port))

    def bind(self) -> socket.socket:
        """A socket that listens here."""
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family, backlog=128)
        except OSError as error:
            raise Refused(
                "CONFIG_INVALID",
                f"--http: {self.host}:{self.port} cannot be used: {error.strerror or error}",
                hint="choose another port; 0 takes a free one",
            ) from None


def read_token(path: Path) -> bytes:
    """The token in a file that only its owner can read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise Refused(
            "INVALID_ARGUMENT", f"--token-file {path}: {error.strerror}", hint=_NEW_TOKEN
        ) from None
    if mode & _GROUP_OR_OTHER:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} can be read by other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    if len(token) < TOKEN_CHARS_MIN or any(byte <= 32 or byte > 126 for byte in token):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} has no token: one line of at least {TOKEN_CHARS_MIN} characters",
            hint=_NEW_TOKEN,
        )
    return token


class HttpAccess(NamedTuple):
    """Where to listen, and what a request must have."""

    address: HttpAddress
    token: bytes
    origins: Sequence[str] = ()
    """Of web pages that may call, beside those on this machine."""

    @classmethod
    def of(cls, address: str, token_file: Path, origins: Sequence[str]) -> HttpAccess:
        return cls(HttpAddress.of(address), read_token(token_file), origins)


async def serve_http(
    server: RealmMcpServer, access: HttpAccess, on_ready: Callable[[str], None]
) -> None:
    """Serve until the task is cancelled. ``on_ready`` gets the URL."""
    address, token, origins = access
    security = _security(address.host, origins)
    if address.host not in _THIS_MACHINE:
        log.warning("no TLS: the token can be read on the way", extra={"host": address.host})
    listener = address.bind()
    host, port = listener.getsockname()[:2]
    app = server.protocol.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES_MAX,
        session_idle_timeout=SESSION_IDLE_S,
        max_sessions=SESSIONS_MAX,
        transport_security=security,
    )
    config = uvicorn.Config(
        _for_web_pages(TokenGuard(app, token), origins),
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S,
    )
    http = _HttpServer(config)
    async with server.open():
        serving = asyncio.create_task(http.serve([listener]))
        try:
            on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}")
            await asyncio.shield(serving)
        finally:
            server.stop()
            http.should_exit = True
            await serving


def _security(host: str, origins: Sequence[str]) -> TransportSecuritySettings:
    """Which names of this server and which web pages are accepted: a page elsewhere must not
    reach it by a name that leads here."""
    named = f"[{host}]" if ":" in host else host
    hosts = {f"{name}:*" for name in (*_LOOPBACK, named)}
    pages = {f"http://{name}:*" for name in (*_LOOPBACK, named)}
    for origin in origins:
        url = urlsplit(origin)
        if url.scheme not in ("http", "https") or not url.netloc or url.path.strip("/"):
            raise Refused(
                "INVALID_ARGUMENT",
                f"--origin: {origin[:80]!r} is no origin",
                hint="as in --origin https://tools.example.com",
            )
        pages.add(f"{url.scheme}://{url.netloc}")
        hosts.add(url.netloc)
    return TransportSecuritySettings(allowed_hosts=sorted(hosts), allowed_origins=sorted(pages))


def _for_web_pages(app: AsgiApp, origins: Sequence[str]) -> AsgiApp:
    """The app, which answers browsers that ask before they let a page of ``origins`` call."""
    if not origins:
        return app
    pages: AsgiApp = CORSMiddleware(
        app,
        allow_origins=[origin.rstrip("/") for origin in origins],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["mcp-session-id"],
    )
    return pages


class TokenGuard:
    """Refuses requests without the token, before it reads any of their body."""

    def __init__(self, app: AsgiApp, token: bytes) -> None:
        self._app, self._expected = app, sha256(token).digest()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_authorized(scope["headers"]):
            await _refuse(send)
        else:
            await self._app(scope, receive, send)

    def _is_authorized(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Compares digests in constant time, so that neither token nor length can be measured."""
        sent = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = (sent[0] if len(sent) == 1 else b"").partition(b" ")
        is_equal = hmac.compare_digest(sha256(token.strip()).digest(), self._expected)
        return is_equal and scheme.lower() == b"bearer"


async def _refuse(send: Send) -> None:
    message = "the request has no valid token"
    hint = "Authorization: Bearer, and what --token-file has"
    body = encode_json({"error": {"code": "UNAUTHORIZED", "message": message, "hint": hint}})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _HttpServer(uvicorn.Server):
    """The command handles signals, and ends the server by ``should_exit``."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
