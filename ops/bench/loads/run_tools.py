"""The tools of the benches' programs. They do nothing, so that only the call itself is measured."""

from __future__ import annotations

from rookery.actors import tool
from rookery.actors.tools.authoring import ToolRegistry
from rookery.schemas.capability import ApprovalMode

__all__ = ["registry"]


@tool(side_effect="write", idempotent=True)
def same(value: int) -> int:
    """The value; its intent is on record before the call."""
    return value


@tool(side_effect="write", idempotent=True, quick=True)
def same_quick(value: int) -> int:
    """The value, on the node's own loop; its intent is on record before the call."""
    return value


@tool(side_effect="read")
def read_value(value: int) -> int:
    """The value; recorded with its outcome."""
    return value


@tool(approval_policy=ApprovalMode.MANUAL)
def weighed(value: int) -> int:
    """The value, after an approval."""
    return value


registry = ToolRegistry.of(same, same_quick, read_value, weighed)
