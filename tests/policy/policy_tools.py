"""Tools whose permissions, risk and possible decisions are declared, or not."""

from __future__ import annotations

from typing import Any

from rookery.actors import tool
from rookery.actors.hooks import deny, hook
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.schemas.seed.hook_invocation import HookInput

__all__ = ["registry"]


@tool(side_effect="read", permissions=["Contacts"])
def look_up(name: str) -> str:
    """Read the address book."""
    return f"{name}@example.com"


@tool(side_effect="write", permissions=["MemoryWrite"])
def remember(text: str) -> str:
    """Write something down."""
    return text


@tool(side_effect="network", permissions=["Network"])
def post(url: str, text: str) -> str:
    """Say that something would be sent."""
    return f"{len(text)} to {url}"


@tool(side_effect="write")
def wipe() -> str:
    """Declares no permission."""
    return "wiped"


@tool
def add(a: int, b: int) -> int:
    """Declares none, either."""
    return a + b


@tool(
    side_effect="external_system",
    approval_policy="manual",
    permissions=[],
    risk="Critical",
    allowed_decisions=["Approved", "Denied"],
)
def pay(amount: int) -> int:
    """Needs an approval of each call."""
    return amount


@tool(side_effect="write", approval_policy={"auto": {"rule": 'risk in ["Low", "Medium"]'}})
def file_away(text: str) -> str:
    """Approved by its risk: that of a write that may not be repeated is high."""
    return text


@hook(
    "before_approval_request",
    rights=["deny"],
    when='name == "remember" and args.text == "forbidden"',
    mode="enforce",
)
def judge_questions(_: HookInput) -> Any:
    """No approver is asked about this."""
    return deny("forbidden", "this is not to be remembered")


registry = ToolRegistry.of(look_up, remember, post, wipe, add, pay, file_away, judge_questions)
