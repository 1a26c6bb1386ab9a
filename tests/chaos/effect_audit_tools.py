"""Tools of a till, for a worker process that outlives the nodes that call it.

Every execution leaves a line in the file ``LEDGER``. One call in twenty fails, always the same.
"""

from __future__ import annotations

import os
from hashlib import sha3_256
from pathlib import Path

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError, ToolRegistry
from rookery.schemas.run import SideEffect

__all__ = ["registry"]

FAILS_OF = 20


def _do(context: ToolCallContext) -> None:
    unlucky = sha3_256(context.idempotency_key.encode()).digest()[0] % FAILS_OF == 0
    line = f"{context.name} {context.idempotency_key} {'failed' if unlucky else 'done'}\n"
    with Path(os.environ["LEDGER"]).open("a", encoding="utf-8") as ledger:
        ledger.write(line)
    if unlucky:
        raise ToolError("OUT_OF_ORDER", "the till is stuck")


@tool(side_effect=SideEffect.WRITE, idempotent=False, concurrency=64, timeout_ms=30_000)
def charge(amount: int, context: ToolCallContext) -> int:
    """Never twice."""
    _do(context)
    return amount


@tool(side_effect=SideEffect.READ, idempotent=True, concurrency=64, timeout_ms=30_000)
async def stock(item: str, context: ToolCallContext) -> int:
    """As often as need be."""
    _do(context)
    return len(item)


registry = ToolRegistry.of(charge, stock)
