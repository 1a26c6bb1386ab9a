"""Tools that leave a line for everything they do: what really happened, whatever anybody says.

The file is named by ``LEDGER``; a line is ``<tool> <idempotency key> <result>``.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError, ToolRegistry
from rookery.schemas.run import SideEffect

__all__ = ["look", "note_done", "pay", "registry"]


def note_done(name: str, context: ToolCallContext, result: object) -> None:
    line = f"{name} {context.idempotency_key} {result}\n"
    with Path(os.environ["LEDGER"]).open("a", encoding="utf-8") as ledger:
        ledger.write(line)


@tool(side_effect=SideEffect.WRITE, idempotent=False)
def pay(amount: int, context: ToolCallContext) -> int:
    """Not to be done twice."""
    if amount < 0:
        raise ToolError("NO_FUNDS", f"{amount} is less than nothing")
    time.sleep(0.01)
    note_done("pay", context, amount * 2)
    time.sleep(0.01)
    return amount * 2


@tool(side_effect=SideEffect.READ, idempotent=True)
async def look(name: str, context: ToolCallContext) -> int:
    """To be done as often as need be."""
    await asyncio.sleep(0.01)
    note_done("look", context, len(name))
    await asyncio.sleep(0.01)
    return len(name)


@tool(side_effect=SideEffect.WRITE, idempotent=True, timeout_ms=120_000)
def handle(number: int, context: ToolCallContext) -> int:
    """To be done under one key, however often."""
    note_done("handle", context, number)
    return number


registry = ToolRegistry.of(pay, look, handle)
