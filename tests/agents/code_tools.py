"""Tools for programs of models: they leave a line in ``LEDGER`` for everything that they do."""

from __future__ import annotations

from rookery.actors import tool
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.authoring.registry import ToolCallContext
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.run import SideEffect
from tests.chaos.ledger_tools import look, note_done, pay

__all__ = ["registry"]


@tool(side_effect=SideEffect.WRITE, idempotent=False, approval_policy=ApprovalMode.MANUAL)
def grant(amount: int, context: ToolCallContext) -> int:
    """Not to be done twice, nor without an approver."""
    note_done("grant", context, amount + 1)
    return amount + 1


registry = ToolRegistry.of(pay, look, grant)
