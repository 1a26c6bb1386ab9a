"""What programs of benches call: tools that do nothing, so only what is around them counts."""

from __future__ import annotations

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.schemas.capability import ApprovalMode

__all__ = ["registry"]


@tool
def same(value: int) -> int:
    """The value."""
    return value


@tool(approval_policy=ApprovalMode.MANUAL)
def weighed(value: int) -> int:
    """The value, once somebody has said yes."""
    return value


registry = ToolRegistry.of(same, weighed)
