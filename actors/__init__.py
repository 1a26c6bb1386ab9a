"""The actors: one package per family of facts, and the kernel that runs each decider in an actor.

``tool`` offers a function to programs, ``agent`` makes one of instructions; ``DECIDERS`` lists the
deciders. They load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.deciders import DECIDERS, DeciderHost
    from rookery.actors.tools import tool
    from rookery.actors.tools.agents import agent

__all__ = ["DECIDERS", "DeciderHost", "agent", "tool"]

__getattr__ = lazy_names(
    __name__,
    {
        "deciders": ("DECIDERS", "DeciderHost"),
        "tools": ("tool",),
        "tools.agents": ("agent",),
    },
)
