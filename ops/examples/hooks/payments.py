"""The tool that is guarded, and the guard, which runs in a process of its own.

``rookery up --tools rookery.ops.examples.hooks.payments:tools`` offers the tool;
``rookery hooks serve rookery.ops.examples.hooks.payments:guards`` serves the guard. The process can
be stopped, changed and started again; what the node does meanwhile is the hook's failure policy.
"""

from __future__ import annotations

from rookery.actors import tool
from rookery.actors.hooks import hook, modify_arguments
from rookery.actors.tools import ToolRegistry
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse

__all__ = ["cap_payments", "guards", "pay", "tools"]

LIMIT = 100


@tool(side_effect="write", idempotent=False)
def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"


@hook("before_tool_call", rights=["modify_tool_request"], mode="off")
def cap_payments(call: HookInput) -> HookResponse | None:
    """Its registration, ``guard.toml``, says when it is invoked, and whether it is enforced."""
    amount = call.view.content["amount"]
    return modify_arguments({"amount": LIMIT}, f"amount {amount} capped at {LIMIT}")


tools = ToolRegistry.of(pay)
guards = ToolRegistry.of(cap_payments)
