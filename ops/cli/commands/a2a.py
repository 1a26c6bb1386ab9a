"""``rookery a2a``: sessions as agents for A2A clients."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.signals import serve_until_signal
from rookery.ops.config import Format, Level
from rookery.ops.logs import configure
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id

__all__ = ["app"]

app = App(name="a2a", help_format="plaintext")


@app.default
def a2a(
    session: Annotated[
        list[str],
        Parameter(help="Session that is an agent; the card of the first is at /.", negative=""),
    ],
    *,
    http: Annotated[str, Parameter(help="Where to listen: HOST:PORT or PORT.")] = "8770",
    token_file: Annotated[
        Path,
        Parameter(help="File that only its owner reads: a line NAME TOKEN for each client."),
    ],
    url: Annotated[
        str, Parameter(help="By which clients reach the gateway, as behind a proxy with TLS.")
    ] = "",
    push_network: Annotated[
        list[str] | None,
        Parameter(
            help="Network that push notifications may reach, too, also without TLS; repeatable.",
            negative="",
        ),
    ] = None,
    log_level: Annotated[Level | None, Parameter(help="Lowest level of log lines.")] = None,
    log_format: Annotated[
        Format | None, Parameter(help="auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Serve sessions to A2A clients by JSON-RPC and HTTP+JSON, until a signal."""
    if find_spec("a2a") is None:
        raise Refused(
            "EXTRA_MISSING",
            "rookery a2a needs the A2A SDK, which is not installed",
            hint="pip install 'rookery[a2a]'",
        )
    from rookery.ops.a2a import A2aGateway, PushNetworks  # noqa: PLC0415 - needs the extra.
    from rookery.ops.gateways import HttpAddress, read_tokens  # noqa: PLC0415 - needs it.

    config = options.load(**{"log.level": log_level, "log.format": log_format}).config
    configure(config.log.level, config.log.format, sys.stderr)
    sessions = list(dict.fromkeys(map(check_session_id, session)))
    tokens = read_tokens(token_file)
    if url and not url.startswith(("https://", "http://")):
        raise Refused("INVALID_ARGUMENT", f"--url: {url[:80]!r} is no URL of HTTP")

    def print_ready(found: str) -> None:
        if options.json:
            print_json({"ready": True, "url": found})
        else:
            print_line(f"ready {found}")

    try:
        networks = PushNetworks(push_network or [])
    except ValueError as error:
        text = f"--push-network: {error}"
        raise Refused("INVALID_ARGUMENT", text, hint="--push-network 10.1.0.0/16") from None
    listener = HttpAddress.of(http).bind()
    gateway = A2aGateway(config, sessions, tokens, networks)
    return serve_until_signal(gateway.serve(listener, url, print_ready), lambda: None)
