"""A server for commands that need no node: the one at work or, for as long as it takes, our own.

What is waited for may be answered while nobody serves the realm: then the answer stands in the
inbox until somebody does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rookery.bus.server.server import EmbeddedServer
from rookery.ops.cli.options import Options
from rookery.ops.server_url import find_server_url, store_of
from rookery.schemas.errors import Refused

__all__ = ["local_server"]


@contextmanager
def local_server(options: Options) -> Iterator[None]:
    """There is a server on the store of ``options``, if there ever was one."""
    config = options.load().config
    store = store_of(config).path
    if find_server_url(config) is not None or not store.is_dir():
        yield
        return
    server = EmbeddedServer(store, sync=config.server.sync)
    try:
        server.start()
    except Refused as refusal:
        if refusal.code != "STORE_IN_USE":
            raise
        yield  # Somebody was quicker than we.
        return
    try:
        yield
    finally:
        server.stop()
