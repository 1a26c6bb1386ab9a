"""Tools: functions a host offers to programs, and what it takes to call one rightly.

Here is what is pure about them: declaring, describing, checking, counting. Calling them in order,
with a ledger and across processes, is the business of the actor.
"""

from rookery.actors.tools.decorator import tool
from rookery.actors.tools.loading import load_registry
from rookery.actors.tools.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolError,
    ToolRegistry,
)

__all__ = [
    "RegisteredTool",
    "ToolCallContext",
    "ToolError",
    "ToolRegistry",
    "load_registry",
    "tool",
]
