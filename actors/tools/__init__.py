"""Tools: functions a host offers to programs, and what becomes of each call of one.

For those who offer tools: ``decorator``, ``registry``, ``loading``; ``files`` and ``http`` stand
ready. What is on record of a call is decided in ``ledger`` and folded in ``fold``, both
pure; ``acting`` performs what follows, with ``places`` for limits and a ``host`` in this process or
a ``remote`` one, whose other end is ``worker``.
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
