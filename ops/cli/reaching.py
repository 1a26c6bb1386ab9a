"""Where a run is put: to the node that serves the store or the URL, or to one of our own.

Ours lives in this process and no longer than what it was started for. Should the node we had found
go away for good, ours takes its place on the same store, and work that is repeated under its id
goes on there.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from cyclopts import Parameter

from rookery.bus.client import Client
from rookery.ops.cli.options import Options
from rookery.ops.config import Config
from rookery.ops.logs import configure
from rookery.ops.node import Node
from rookery.ops.reach import find_url, no_server
from rookery.schemas.errors import CodedError, Refused

__all__ = ["Tools", "reaching"]

T = TypeVar("T")
Work = Coroutine[Any, Any, T]

Tools = Annotated[
    str | None,
    Parameter(help="MODULE:OBJECT of functions it may call, where no node is running yet."),
]

ATTEMPTS = 3
ABSENCE_S = 5.0
"""How long nobody may be there to ask: one that restarts is soon back."""
MOVED: Final = ("STORE_IN_USE", "SERVER_UNREACHABLE")
"""Somebody was quicker than we, or has left: who serves the store is to be found anew."""


def reaching(options: Options, tools: str | None, work: Callable[[Client], Work[T]]) -> T:
    """Do ``work`` with a client of the realm, whoever serves it."""
    config = options.load(**{"node.tools": tools, "node.driver": "sandbox"}).config
    problem: CodedError = no_server(config)
    for _ in range(ATTEMPTS):
        url = find_url(config)
        try:
            if url is None:
                return _served_here(config, work)
            if tools is not None:
                raise _has_its_own(tools)
            return asyncio.run(_with_client(config, url, work))
        except CodedError as error:
            if config.url or error.code not in MOVED:
                raise
            problem = error
    raise problem


def _served_here(config: Config, work: Callable[[Client], Work[T]]) -> T:
    configure("warning", config.log.format, sys.stderr)
    with Node(config) as node:
        return asyncio.run(_with_client(config, node.url, work))


async def _with_client(config: Config, url: str, work: Callable[[Client], Work[T]]) -> T:
    credentials = config.server.credentials_file
    client = Client(url, realm=config.realm, credentials=credentials, absence_s_max=ABSENCE_S)
    async with client:
        return await work(client)


def _has_its_own(tools: str) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"--tools {tools}: a node serves already, and offers tools of its own",
        hint=f"start it with them: rookery up --tools {tools}",
    )
