"""The actors: one package per family of facts, and the kernel that runs each decider in an actor.

``tool`` offers a function to programs; ``DECIDERS`` lists the deciders. Both load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rookery.actors.deciders import DECIDERS, DeciderHost
    from rookery.actors.tools import tool

__all__ = ["DECIDERS", "DeciderHost", "tool"]

_MODULES: Final = {"DECIDERS": "deciders", "DeciderHost": "deciders", "tool": "tools"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
