"""Where a run is put: to the node that serves the store or the URL, or to one of our own.

Ours lives in this process and no longer than what it was started for; whoever else has found it
meanwhile is not left without an end. Should the node we had found go away before it has taken the
work, ours takes its place on the same store. A run that was accepted is no longer ours to place.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Timer
from typing import Annotated, Any, Final

from cyclopts import Parameter

from rookery.bus.client.client import Client
from rookery.ops.cli.options import Options
from rookery.ops.cli.rendering.run_result import print_stderr
from rookery.ops.config import Config
from rookery.ops.logs import configure
from rookery.ops.node import Node
from rookery.ops.server_url import find_server_url, no_server_error
from rookery.schemas.errors import CodedError, Refused

__all__ = ["Tools", "with_realm_client"]

ClientWork = Callable[[Client], Coroutine[Any, Any, int]]
"""It shows what it comes to, and returns the exit code."""

Tools = Annotated[
    str | None,
    Parameter(help="MODULE:OBJECT of functions it may call, where no node is running yet."),
]

ATTEMPTS = 3
ABSENCE_MAX_S = 5.0
"""How long nobody may be there to ask: one that restarts is soon back."""
NOTICE_AFTER_S = 1.0
"""A node that stops sooner need not say why it has not."""
SERVER_CHANGED_CODES: Final = ("STORE_IN_USE", "SERVER_UNREACHABLE")
"""Somebody was quicker than we, or has left: who serves the store is to be found anew."""


def with_realm_client(options: Options, tools: str | None, work: ClientWork) -> int:
    """Do ``work`` with a client of the realm, whoever serves it."""
    config = options.load(**{"node.tools": tools, "node.driver": "sandbox"}).config
    problem: CodedError = no_server_error(config)
    for _ in range(ATTEMPTS):
        url = find_server_url(config)
        try:
            if url is None:
                return _with_own_node(config, work)
            if tools is not None:
                raise _tools_refused(tools)
            return asyncio.run(_with_client(config, url, work))
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
        return asyncio.run(_with_client(config, node.url, work))
    finally:
        _stop_node(node)


def _stop_node(node: Node) -> None:
    """What was asked for is told by now: nothing that goes wrong here makes it untrue."""
    telling = Timer(NOTICE_AFTER_S, _print_notice, [node])
    telling.daemon = True
    telling.start()
    try:
        node.stop()
    except CodedError as error:
        print_stderr(f"stopping: {error}")
    finally:
        telling.cancel()


def _print_notice(node: Node) -> None:
    with suppress(CodedError, TimeoutError):
        runs = ", ".join(node.running()) or "what is under way"
        print_stderr(
            f"stopping: this process serves {runs} to the end, for {node.drain_s:g} s at most"
        )


async def _with_client(config: Config, url: str, work: ClientWork) -> int:
    credentials = config.server.credentials_file
    client = Client(url, realm=config.realm, credentials=credentials, absence_s_max=ABSENCE_MAX_S)
    async with client:
        return await work(client)


def _tools_refused(tools: str) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"--tools {tools}: a node serves already, and offers tools of its own",
        hint=f"start it with them: rookery up --tools {tools}",
    )
