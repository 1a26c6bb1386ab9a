"""What the gateways that listen on HTTP share: the address, the tokens of clients, the server."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused

__all__ = ["HttpAddress", "TokenGuard", "read_tokens", "serve_app"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 256
STOP_S: Final = 2
"""For answers under way when the server stops."""
TOKEN_CHARS_MIN: Final = 16
_CLIENT: Final = "rookery.client"
"""In the scope of a request."""
_FILE_BYTES_MAX: Final = 1 << 20
_GROUP_OR_OTHER: Final = stat.S_IRWXG | stat.S_IRWXO
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "::1")
_NEW_TOKEN: Final = "(umask 077; openssl rand -hex 32 > FILE)"  # noqa: S105 - a command.
_NEW_CLIENT: Final = '(umask 077; echo "NAME $(openssl rand -hex 32)" >> FILE)'
_NAME: Final = re.compile("[A-Za-z0-9_-]{1,40}")


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

    @classmethod
    def of_socket(cls, listener: socket.socket) -> HttpAddress:
        """Where it listens."""
        host, port = listener.getsockname()[:2]
        return cls(host, port)

    @property
    def url(self) -> str:
        """By which clients reach it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

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


# --- tokens ---------------------------------------------------------------------------------------


def read_tokens(path: Path, *, client: str = "") -> dict[str, bytes]:
    """The tokens of clients by their names, in a file that only its owner can read: a line
    ``NAME TOKEN`` for each, or just the token of the only ``client``."""
    content = _read_private(path, _NEW_TOKEN if client else _NEW_CLIENT)
    if client:
        return {client: _read_single(path, content.strip())}
    found: dict[str, bytes] = {}
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith(b"#"):
            continue
        name = words[0].decode("utf-8", "replace")
        is_line = len(words) == 2 and _NAME.fullmatch(name) and _is_token(words[1])
        if not is_line or name in found or words[1] in found.values():
            raise Refused(
                "INVALID_ARGUMENT",
                f"{path}, line {number}: not a new NAME and a TOKEN of its own, of at least "
                f"{TOKEN_CHARS_MIN} characters",
                hint=_NEW_CLIENT,
            )
        found[name] = words[1]
    if not found:
        raise Refused("INVALID_ARGUMENT", f"{path} has no client", hint=_NEW_CLIENT)
    return found


def _read_single(path: Path, token: bytes) -> bytes:
    if not _is_token(token):
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} has no token: one line of at least {TOKEN_CHARS_MIN} characters",
            hint=_NEW_TOKEN,
        )
    return token


def _is_token(text: bytes) -> bool:
    return len(text) >= TOKEN_CHARS_MIN and all(32 < byte <= 126 for byte in text)


def _read_private(path: Path, hint: str) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise Refused(
            "INVALID_ARGUMENT", f"--token-file {path}: {error.strerror}", hint=hint
        ) from None
    if mode & _GROUP_OR_OTHER:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} can be read by other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    return content


class TokenGuard:
    """Refuses requests without the token of a client, before it reads any of their body."""

    def __init__(
        self,
        app: ASGIApp,
        tokens: Mapping[str, bytes],
        is_public: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``tokens``: by the name of their client; ``is_public``: paths that need none."""
        self._app, self._is_public = app, is_public
        # Digests are looked up, so that neither a token nor its length can be measured.
        self._names = {sha256(token).digest(): name for name, token in tokens.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_public(scope["path"]):
            name = self._name_of(scope["headers"])
            if name is None:
                await _refuse(send)
                return
            scope[_CLIENT] = name
        await self._app(scope, receive, send)

    @staticmethod
    def client_of(scope: Scope) -> str:
        """The name of the client whose token a request has."""
        return str(scope[_CLIENT])

    def _name_of(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        sent = [value for name, value in headers if name == b"authorization"]
        scheme, _, token = (sent[0] if len(sent) == 1 else b"").partition(b" ")
        name = self._names.get(sha256(token.strip()).digest())
        return name if scheme.lower() == b"bearer" else None


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


# --- the server -----------------------------------------------------------------------------------


async def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    on_ready: Callable[[str], None],
    on_stop: Callable[[], None],
) -> None:
    """Serve until the task is cancelled. ``on_ready`` gets the URL; ``on_stop`` is called before
    the answers under way get their last moments."""
    address = HttpAddress.of_socket(listener)
    if address.host not in _THIS_MACHINE:
        log.warning("no TLS: the token can be read on the way", extra={"host": address.host})
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=STOP_S,
    )
    http = _HttpServer(config)
    serving = asyncio.create_task(http.serve([listener]))
    try:
        on_ready(address.url)
        await asyncio.shield(serving)
    finally:
        on_stop()
        http.should_exit = True
        await serving


class _HttpServer(uvicorn.Server):
    """The command handles signals, and ends the server by ``should_exit``."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
