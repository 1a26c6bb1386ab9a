"""The bus: the only package that imports NATS; other packages see its ports.

``connect`` is the entry for programs. It is loaded at first use, so that code which only needs the
ports does not import a NATS client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rookery.bus.client.client import Client, Handle, connect
    from rookery.bus.client.sync import SyncClient, SyncHandle, connect_sync

__all__ = ["Client", "Handle", "SyncClient", "SyncHandle", "connect", "connect_sync"]

_PUBLIC_NAMES = {
    "client.client": ("Client", "Handle", "connect"),
    "client.sync": ("SyncClient", "SyncHandle", "connect_sync"),
}


def __getattr__(name: str) -> Any:
    for home, names in _PUBLIC_NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
