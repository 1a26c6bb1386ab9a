"""Tools: functions a node offers to programs, and the calls of them.

The names here are for authors of tools. ``catalogue`` has the tools that programs see, ``files``,
``web`` and ``builtin`` those that come with Rookery. ``calls`` decides which facts of calls are
committed, and ``evolve`` folds them; both are pure. ``attempts`` performs the effects, with a host:
``functions`` of this process, or of a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.tools.authoring.decorator import tool
    from rookery.actors.tools.authoring.registry import (
        ToolCallContext,
        ToolCredential,
        ToolError,
        ToolRegistry,
    )

__all__ = ["ToolCallContext", "ToolCredential", "ToolError", "ToolRegistry", "tool"]

__getattr__ = lazy_names(
    __name__,
    {
        "authoring.decorator": ("tool",),
        "authoring.registry": (
            "ToolCallContext",
            "ToolCredential",
            "ToolError",
            "ToolRegistry",
        ),
    },
)
