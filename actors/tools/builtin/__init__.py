"""Built-in tools for files, HTTP and resources, each limited by what the operator allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.builtin.files import Mounts
    from rookery.actors.tools.builtin.http import HttpReader
    from rookery.actors.tools.builtin.peers import peer_tools, peers_registry
    from rookery.actors.tools.builtin.resources import resource_tools

__all__ = ["HttpReader", "Mounts", "peer_tools", "peers_registry", "resource_tools"]

__getattr__ = lazy_names(
    __name__,
    {
        "files": ("Mounts",),
        "http": ("HttpReader",),
        "peers": ("peer_tools", "peers_registry"),
        "resources": ("resource_tools",),
    },
)
