"""Hosts of functions: those of this process, and those of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.functions.local_host import LocalToolHost
    from rookery.actors.tools.functions.remote_host import RemoteToolHost
    from rookery.actors.tools.functions.worker import Worker

__all__ = ["LocalToolHost", "RemoteToolHost", "Worker"]

__getattr__ = lazy_names(
    __name__,
    {
        "local_host": ("LocalToolHost",),
        "remote_host": ("RemoteToolHost",),
        "worker": ("Worker",),
    },
)
