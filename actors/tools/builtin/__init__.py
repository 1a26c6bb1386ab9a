"""Built-in tools that a node offers without configuration: sleep, peers and resources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.builtin.peers import peer_tools, peers_registry
    from rookery.actors.tools.builtin.resources import resource_tools
    from rookery.actors.tools.builtin.sleep import built_in_tools

__all__ = ["built_in_tools", "peer_tools", "peers_registry", "resource_tools"]

__getattr__ = lazy_names(
    __name__,
    {
        "peers": (
            "peer_tools",
            "peers_registry",
        ),
        "resources": ("resource_tools",),
        "sleep": ("built_in_tools",),
    },
)
