"""Who decides: one package a concern, and the kernel that makes each of them an actor.

``tool`` is the door for those who offer functions to programs; it is loaded when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rookery.actors.tools import tool

__all__ = ["tool"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.tools"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
