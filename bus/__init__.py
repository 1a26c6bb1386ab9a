"""How it travels: the only package that knows NATS; everybody else knows its ports.

``connect`` is the door for programs. It is loaded when it is first asked for, so that who needs
only the ports never imports a NATS client.
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
