"""The server by HTTP: a token in every request, and no requests of foreign web pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from rookery.ops.gateways import HttpAddress, TokenGuard, read_tokens, serve_app
from rookery.ops.mcp_server.server import RealmMcpServer
from rookery.schemas.errors import Refused

__all__ = ["HttpAccess", "serve_http"]

PATH: Final = "/mcp"
CLIENT: Final = "mcp"
"""The name of the only one that has a token."""
SESSIONS_MAX: Final = 100
"""Of clients of the older era; those of the newer one have none."""
SESSION_IDLE_S: Final = 1_800.0
BODY_BYTES_MAX: Final = 16 << 20
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class HttpAccess(NamedTuple):
    """Where to listen, and what a request must have."""

    address: HttpAddress
    tokens: Mapping[str, bytes]
    origins: Sequence[str] = ()
    """Of web pages that may call, beside those on this machine."""

    @classmethod
    def of(cls, address: str, token_file: Path, origins: Sequence[str]) -> HttpAccess:
        return cls(HttpAddress.of(address), read_tokens(token_file, client=CLIENT), origins)


async def serve_http(
    server: RealmMcpServer, access: HttpAccess, on_ready: Callable[[str], None]
) -> None:
    """Serve until the task is cancelled. ``on_ready`` gets the URL."""
    address, tokens, origins = access
    security = _security(address.host, origins)
    app = server.protocol.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=BODY_BYTES_MAX,
        session_idle_timeout=SESSION_IDLE_S,
        max_sessions=SESSIONS_MAX,
        transport_security=security,
    )
    guarded = TokenGuard(app, tokens)
    listener = address.bind()
    async with server.open():
        await serve_app(
            _for_web_pages(guarded, origins),
            listener,
            lambda url: on_ready(f"{url}{PATH}"),
            server.stop,
        )


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


def _for_web_pages(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The app, which answers browsers that ask before they let a page of ``origins`` call."""
    if not origins:
        return app
    pages: ASGIApp = CORSMiddleware(
        app,
        allow_origins=[origin.rstrip("/") for origin in origins],
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["mcp-session-id"],
    )
    return pages
