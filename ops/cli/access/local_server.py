"""A server for commands that need no node: the running one, or one for the time of the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer
from rookery.ops.cli.options import Options
from rookery.ops.server import find_server, store_of
from rookery.schemas.errors import Refused

__all__ = ["local_server"]


@contextmanager
def local_server(options: Options) -> Iterator[None]:
    """Run a server on the store for this block, unless one is running or there is no store."""
    config = options.load().config
    store = store_of(config).path
    if not store.is_dir() or find_server(config, Role.NODE) is not None:
        yield
        return
    server = EmbeddedServer(store, realm=config.realm, sync=config.server.sync)
    try:
        server.start()
    except Refused as refusal:
        if refusal.code != "STORE_IN_USE":
            raise
        yield  # Another process has just started one.
        return
    try:
        yield
    finally:
        server.stop()
