"""Tools and hooks for programs in tests. Each execution of ``pay`` and each invocation of a hook
writes a line to a file, which counts them from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from msgspec import UNSET

from rookery.actors import tool
from rookery.actors.hooks import (
    deny,
    hook,
    modify_arguments,
    require_approval,
    rewrite_result,
    rule_hook,
)
from rookery.actors.tools import ToolRegistry
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.hook_invocation import HookInput

__all__ = ["registry"]

BOOK = Path(os.environ.get("HOOKS_BOOK", "hooks_book.txt"))
POINT = "before_tool_call"
SEEN = {"mode": "enforce", "sees": "content_capture_allowed"}


def write(line: str) -> None:
    with BOOK.open("a", encoding="utf-8") as book:
        book.write(f"{line}\n")


@tool(side_effect=SideEffect.WRITE, idempotent=False)
def pay(to: str, amount: int) -> str:
    """Pay an amount."""
    write(f"paid {amount} {to}")
    return f"paid {amount} to {to}"


@tool(side_effect=SideEffect.READ)
def look(value: Any) -> Any:
    """Return the argument."""
    return value


@tool(side_effect=SideEffect.WRITE)
def fragile(kind: str) -> str:
    """A tool whose hook fails in a way."""
    return kind


@hook(POINT, rights=["modify_tool_request"], when='name == "pay"', order=10, **SEEN)
def cap_payments(call: HookInput) -> Any:
    """Payments are at most 100; one of 7 gets an argument that the tool does not take."""
    amount = call.view.content["amount"]
    write(f"cap {amount}")
    if amount == 7:
        return modify_arguments({"amount": "much"}, "a patch that the tool refuses")
    if amount <= 100:
        return None
    return modify_arguments({"amount": 100}, "amount capped at 100")


@hook(POINT, rights=["deny", "request_approval"], when='name == "pay"', **SEEN)
def judge_payments(call: HookInput) -> Any:
    """Sees what the cap made of a payment."""
    amount, to = call.view.content["amount"], call.view.content["to"]
    write(f"judge {amount}")
    if to == "eve":
        return deny("recipient", "eve gets nothing")
    if to == "ann":
        return require_approval("payments to ann need a person")
    return None


@hook(POINT, rights=["deny"], when='name == "pay"', order=200, mode="audit")
async def audit_payments(call: HookInput) -> Any:
    """Would refuse every payment; only sees the summary."""
    assert call.view.content is UNSET
    return deny("audit", "would stop this payment")


@hook(
    POINT,
    rights=["deny"],
    when='name == "fragile"',
    timeout_ms=400,
    mode="enforce",
    sees=SEEN["sees"],
)
def fragile_guard(call: HookInput) -> Any:
    """Fails as its call says."""
    match call.view.content["kind"]:
        case "error":
            raise ValueError("the guard is broken")
        case "timeout":
            time.sleep(1)
        case "garbage":
            return {"decision": "allow"}
        case "stop_run":
            return require_approval("it has no right to ask")
    return None


@hook(
    POINT,
    rights=["deny"],
    when='name == "fragile" and args.kind == "fatal"',
    failure="fail_run",
    mode="enforce",
    order=150,
)
def fatal_guard(call: HookInput) -> Any:
    raise ValueError("the guard is broken for good")


@hook(
    "after_tool_call",
    rights=["rewrite_tool_result"],
    when='name == "look" and not (args.value in [1, 2])',
    **SEEN,
)
def redact(call: HookInput) -> Any:
    """Hides card numbers, and fails for a broken one."""
    value = call.view.content
    write(f"redact {value}")
    if value == "card broken":
        raise ValueError("the redactor is broken")
    if isinstance(value, str) and value.startswith("card"):
        return rewrite_result("card ****", "a card number")
    return None


@hook(
    "after_tool_call",
    when='name == "look" and starts_with(args.value, "open ")',
    failure="fail_open_observe_only",
    timeout_ms=2_000,
    **SEEN,
)
def watch_looks(call: HookInput) -> Any:
    """Only observes, and fails as the call says."""
    if call.view.content == "open error":
        raise ValueError("the watcher is broken")
    return deny("no", "it may not judge") if call.view.content == "open deny" else None


@hook(
    "after_tool_call",
    when='name == "look" and args.value == "late"',
    failure="fail_open_observe_only",
    timeout_ms=20,
    **SEEN,
)
def watch_late(_: HookInput) -> None:
    """Takes longer than it may."""
    time.sleep(0.5)


SECRET = rule_hook(
    "no-secrets",
    POINT,
    when='name == "look" and starts_with(args.value, "secret")',
    then=deny("secret", "secrets are not looked at"),
    mode="enforce",
    order=300,
)

registry = ToolRegistry.of(
    pay,
    look,
    fragile,
    cap_payments,
    judge_payments,
    audit_payments,
    fragile_guard,
    fatal_guard,
    redact,
    watch_looks,
    watch_late,
    SECRET,
)
plain = ToolRegistry.of(pay, look, fragile)


@hook(POINT, rights=["modify_tool_request"], mode="off")
def for_realms(call: HookInput) -> Any:
    """Not invoked but for hooks of the realm that name it."""
    write(f"for realms {call.hook_id.as_str()}")
    return modify_arguments({"amount": 100}, "amount capped at 100")


named = ToolRegistry.of(pay, for_realms)
