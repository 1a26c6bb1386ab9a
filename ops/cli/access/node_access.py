"""A client of the realm for a run: on the running node, or on a node in this process.

The node in this process stops with the command, after the runs that other clients have started on
it. If the running node stops before it has accepted the run, a node in this process replaces it on
the same store. An accepted run is never submitted to another node.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Timer
from typing import Any, Final

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.ops.cli.options import NodeTools, Options
from rookery.ops.cli.rendering.run_result import print_stderr
from rookery.ops.config import Config
from rookery.ops.logs import configure
from rookery.ops.node import Node
from rookery.ops.server import RealmServer, client_of, find_server, no_server_error, server_of
from rookery.schemas.errors import CodedError, Refused

__all__ = ["with_realm_client"]

ClientWork = Callable[[Client], Coroutine[Any, Any, int]]
"""It prints its result and returns the exit code."""

ATTEMPTS = 3
ABSENCE_MAX_S = 5.0
"""How long the realm may be without a node, such as while it restarts."""
NOTICE_AFTER_S = 1.0
"""A node that takes longer to stop prints why."""
SERVER_CHANGED_CODES: Final = ("STORE_IN_USE", "SERVER_UNREACHABLE")
"""Another process has started or stopped a server: look for the server again."""


def with_realm_client(options: Options, own: NodeTools, work: ClientWork) -> int:
    """Do ``work`` with a client of the realm, on the running node or one in this process, which has
    its ``own`` tools."""
    config = options.load(**own.flags, **{"node.driver": "sandbox"}).config
    problem: CodedError = no_server_error(config)
    for _ in range(ATTEMPTS):
        try:
            server = find_server(config, Role.OPERATOR)
            if server is None:
                return _with_own_node(config, work)
            if own.typed:
                raise _tools_refused(own.typed)
            return asyncio.run(_with_client(config, server, work))
        except CodedError as error:
            if config.url or error.code not in SERVER_CHANGED_CODES:
                raise
            problem = error
    raise problem


def _with_own_node(config: Config, work: ClientWork) -> int:
    configure("warning", config.log.format, sys.stderr)
    node = Node(config)
    node.start()
    try:
        return asyncio.run(_with_client(config, server_of(config, Role.OPERATOR), work))
    finally:
        _stop_node(node)


def _stop_node(node: Node) -> None:
    """Stop the node; the result is printed already, so errors are only reported."""
    notice = Timer(NOTICE_AFTER_S, _print_notice, [node])
    notice.daemon = True
    notice.start()
    try:
        node.stop()
    except CodedError as error:
        print_stderr(f"stopping: {error}")
    finally:
        notice.cancel()


def _print_notice(node: Node) -> None:
    with suppress(CodedError, TimeoutError):
        runs = ", ".join(node.running()) or "running commands"
        print_stderr(
            f"stopping: this process serves {runs} to the end, for {node.drain_s:g} s at most"
        )


async def _with_client(config: Config, server: RealmServer, work: ClientWork) -> int:
    async with client_of(server, config.realm, ABSENCE_MAX_S) as client:
        return await work(client)


def _tools_refused(typed: str) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"{typed}: a node is running, with its own tools",
        hint=f"start it with them: rookery up {typed}",
    )
