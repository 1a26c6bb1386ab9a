"""The tools of the benches' programs. They do nothing, so that only the call itself is measured."""

from __future__ import annotations

from rookery.actors import tool
from rookery.actors.tools.authoring import ToolRegistry
from rookery.schemas.capability import ApprovalMode

__all__ = ["registry"]


@tool
def same(value: int) -> int:
    """The value."""
    return value


@tool(approval_policy=ApprovalMode.MANUAL)
def weighed(value: int) -> int:
    """The value, after an approval."""
    return value


registry = ToolRegistry.of(same, weighed)
