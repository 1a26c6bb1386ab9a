"""``rookery mcp``: the realm as an MCP server."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from rookery.ops.cli.arguments import read_signer
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.signals import serve_until_signal
from rookery.ops.config import Config, Format, Level
from rookery.ops.logs import configure
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id

if TYPE_CHECKING:
    from rookery.ops.mcp_server import McpApprover

__all__ = ["app"]

app = App(name="mcp", help_format="plaintext")


@app.default
def mcp(
    *,
    session: Annotated[
        str, Parameter(help="Session whose tools are offered, and the default for programs.")
    ] = "mcp",
    http: Annotated[
        str | None, Parameter(help="Serve by HTTP at HOST:PORT or PORT, instead of stdio.")
    ] = None,
    token_file: Annotated[
        Path | None, Parameter(help="File with the token that HTTP requests must have.")
    ] = None,
    origin: Annotated[
        list[str] | None,
        Parameter(help="Origin of web pages that may call by HTTP; repeatable.", negative=""),
    ] = None,
    approver_key: Annotated[
        Path | None,
        Parameter(help="Key file of an approver: clients may then decide approvals."),
    ] = None,
    log_level: Annotated[Level | None, Parameter(help="Lowest level of log lines.")] = None,
    log_format: Annotated[
        Format | None, Parameter(help="auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Serve the realm to an MCP client until it disconnects, or until a signal."""
    _require_extra()
    from rookery.ops import mcp_server  # noqa: PLC0415 - needs the extra.

    config = options.load(**{"log.level": log_level, "log.format": log_format}).config
    configure(config.log.level, config.log.format, sys.stderr)
    server = mcp_server.RealmMcpServer(
        config, check_session_id(session), _approver(config, approver_key)
    )
    if http is None:
        _refuse_http_options(token_file, origin)
        return serve_until_signal(mcp_server.serve_stdio(server), server.stop)
    if token_file is None:
        raise Refused(
            "INVALID_ARGUMENT",
            "--http needs --token-file: without it every client of the port could run programs",
            hint="(umask 077; openssl rand -hex 32 > FILE)",
        )
    access = mcp_server.HttpAccess.of(http, token_file, origin or [])

    def print_ready(url: str) -> None:
        if options.json:
            print_json({"ready": True, "url": url})
        else:
            print_line(f"ready {url}")

    serving = mcp_server.serve_http(server, access, print_ready)
    return serve_until_signal(serving, server.stop)


def _require_extra() -> None:
    if find_spec("mcp") is None:
        raise Refused(
            "EXTRA_MISSING",
            "rookery mcp needs the MCP SDK, which is not installed",
            hint="pip install 'rookery[mcp]'",
        )


def _approver(config: Config, key: Path | None) -> McpApprover | None:
    if key is None:
        return None
    from rookery.ops.mcp_server import McpApprover  # noqa: PLC0415 - needs the extra.

    approver = McpApprover(config, read_signer(key))
    approver.check_role()
    return approver


def _refuse_http_options(token_file: Path | None, origin: list[str] | None) -> None:
    if token_file is not None or origin:
        raise Refused(
            "INVALID_ARGUMENT", "--token-file and --origin are for --http", hint="--http 8765"
        )
