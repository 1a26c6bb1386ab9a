"""Tools that must not act twice, for nodes and workers that are cut off.

Each execution is one line in the file ``LEDGER``, written at once: when the call began, when it
acted, the call, its attempt, and the process that acted.
"""

from __future__ import annotations

import os
import time

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolRegistry
from rookery.schemas.run import SideEffect

__all__ = ["registry"]

TOOL_S = float(os.environ.get("CUT_TOOL_S", "0.05"))
TIMEOUT_MS = int(os.environ.get("CUT_TIMEOUT_MS", "5000"))
SLOW_TIMEOUT_MS = TIMEOUT_MS + 2_000


def _act(context: ToolCallContext, began_s: float) -> None:
    where = os.environ["CUT_PROCESS"]
    line = f"{began_s:.6f} {time.time():.6f} {context.call_id} {context.attempt} {where}\n"
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, line.encode())
    os.close(ledger)


@tool(side_effect=SideEffect.WRITE, idempotent=False, concurrency=64, timeout_ms=TIMEOUT_MS)
def charge(amount: int, note: str = "", *, context: ToolCallContext) -> int:
    """Acts at once; ``note`` may be large."""
    _act(context, time.time())
    time.sleep(TOOL_S)
    return amount


@tool(side_effect=SideEffect.WRITE, idempotent=False, concurrency=64, timeout_ms=SLOW_TIMEOUT_MS)
def slow_charge(amount: int, after_s: float, *, context: ToolCallContext) -> int:
    """Acts at its end."""
    began_s = time.time()
    time.sleep(after_s)
    _act(context, began_s)
    return amount


@tool(
    side_effect=SideEffect.WRITE,
    idempotent=False,
    concurrency=64,
    timeout_ms=TIMEOUT_MS,
    approval_policy="manual",
)
def approved_charge(amount: int, *, context: ToolCallContext) -> int:
    """Acts at once, after an approver has approved it."""
    _act(context, time.time())
    time.sleep(TOOL_S)
    return amount


registry = ToolRegistry.of(charge, slow_charge, approved_charge)
