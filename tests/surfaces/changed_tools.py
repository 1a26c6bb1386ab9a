"""The tools of ``desk_tools`` after a change of their schemas."""

from __future__ import annotations

from rookery.actors.tools import ToolRegistry, tool


@tool
async def brief(number: int, reason: str) -> str:
    """Work, with a reason."""
    return f"{number}: {reason}"


registry = ToolRegistry.of(brief)
