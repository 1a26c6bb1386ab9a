"""Tools: functions a node offers to programs, and the calls of them.

``authoring`` is for authors of tools; ``builtin`` holds the tools for files and HTTP.
``call_rules`` decides which facts of calls are committed, ``evolve`` folds them; both are pure.
``executor`` performs the effects, with ``call_slots`` for limits and a host: ``local_host`` for
functions of this process, ``remote_host`` for those of a ``worker``.
"""

from rookery.actors.tools.authoring.decorator import tool
from rookery.actors.tools.authoring.loader import load_registry
from rookery.actors.tools.authoring.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolError,
    ToolRegistry,
)
from rookery.actors.tools.builtin.files import Mount, file_tools
from rookery.actors.tools.builtin.http import Allowed, http_tools

__all__ = [
    "Allowed",
    "Mount",
    "RegisteredTool",
    "ToolCallContext",
    "ToolError",
    "ToolRegistry",
    "file_tools",
    "http_tools",
    "load_registry",
    "tool",
]
