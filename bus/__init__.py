"""The bus: the only package that imports NATS; other packages see its ports.

``connect`` is the entry for programs. It is loaded at first use, so that code which only needs the
ports does not import a NATS client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.bus.client.client import Client, Handle, connect
    from rookery.bus.client.sync import SyncClient, SyncHandle, connect_sync

__all__ = ["Client", "Handle", "SyncClient", "SyncHandle", "connect", "connect_sync"]

__getattr__ = lazy_names(
    __name__,
    {
        "client.client": ("Client", "Handle", "connect"),
        "client.sync": ("SyncClient", "SyncHandle", "connect_sync"),
    },
)
