"""The URL of the server that a configuration means.

A configured URL comes first, with the configured token; else it is the URL of the embedded server
that runs on the store. This module starts no server.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from rookery.bus.server import (
    Store,
    check_usable,
    default_store,
    find_running,
    with_token,
)
from rookery.ops.config import Config
from rookery.schemas.errors import Failed, Refused

__all__ = ["find_server_url", "no_server_error", "server_url", "store_of"]


def store_of(config: Config) -> Store:
    """The store directory of the embedded server, whether or not it exists yet."""
    store = Store(Path(config.store) if config.store else default_store())
    with check_usable(store.path):
        place = next(path for path in (store.path, *store.path.parents) if path.exists())
    if not (place.is_dir() and os.access(place, os.R_OK | os.W_OK | os.X_OK)):
        raise Refused(
            "CONFIG_INVALID",
            f"store {store.path}: {place} is not a writable directory",
            hint="choose another one with --store",
        )
    return store


def find_server_url(config: Config) -> str | None:
    """The server's URL, token included; ``None`` if none is configured and none runs."""
    if not config.url:
        return find_running(store_of(config).path)
    if "@" in config.url or config.server.credentials_file:
        return config.url
    token = quote(config.server.token, safe="") or _token_of_store(config)
    return with_token(config.url, token) if token else config.url


def _token_of_store(config: Config) -> str:
    """The token of the embedded server of this user's store, if the configured URL is its
    address."""
    store = Store(Path(config.store) if config.store else default_store())
    if not store.path.is_dir():
        return ""
    running = store.running_server() if store.is_locked() else None
    return store.token() if running is not None and running.address == config.url else ""


def server_url(config: Config) -> str:
    """The server's URL, token included, or ``Failed`` SERVER_UNREACHABLE."""
    url = find_server_url(config)
    if url is None:
        raise no_server_error(config)
    return url


def no_server_error(config: Config) -> Failed:
    """The error for a missing server, with what to do."""
    return Failed(
        "SERVER_UNREACHABLE",
        f"no server runs on {store_of(config).path}",
        hint="rookery up, or name a server with --url",
    )
