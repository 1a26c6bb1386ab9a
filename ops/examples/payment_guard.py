"""A guard of payments: ``rookery up --tools rookery.ops.examples.payment_guard:registry``.

Then ``rookery run -e 'pay("Ann", 500)'`` pays 100, ``pay("Eve", 5)`` is refused, and ``runs show``
says which hook did it. ``ops/docs/hooks.md`` has the rules.
"""

from __future__ import annotations

from rookery.actors import tool
from rookery.actors.hooks import deny, hook, modify_arguments, rule_hook
from rookery.actors.tools import ToolRegistry
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse

__all__ = ["cap_payments", "pay", "registry"]

LIMIT = 100


@tool(side_effect="write", idempotent=False)
def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount} to {to}"


@hook(
    "before_tool_call",
    rights=["modify_tool_request"],
    when=f'name == "pay" and args.amount > {LIMIT}',
    mode="enforce",
    order=10,
    sees="content_capture_allowed",
)
def cap_payments(call: HookInput) -> HookResponse | None:
    """It is invoked for large payments only, and changes their amount."""
    summary = f"amount {call.view.content['amount']} capped at {LIMIT}"
    return modify_arguments({"amount": LIMIT}, summary)


registry = ToolRegistry.of(
    pay,
    cap_payments,
    rule_hook(
        "no-eve",
        "before_tool_call",
        when='name == "pay" and args.to == "Eve"',
        then=deny("recipient", "Eve gets nothing"),
        mode="enforce",
    ),
    rule_hook(
        "no-evenings",
        "before_tool_call",
        when='name == "pay" and starts_with(session, "evening")',
        then=deny("hours", "there are no payments in the evening"),
        mode="audit",
    ),
)
