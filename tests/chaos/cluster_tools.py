"""A counted tool, with a longer timeout than any election takes.

Each call is one line in the file ``LEDGER``: ``<call> <number>``.
"""

from __future__ import annotations

import os

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolRegistry
from rookery.schemas.run import SideEffect

__all__ = ["registry"]

TIMEOUT_MS = 100_000


@tool(side_effect=SideEffect.WRITE, idempotent=False, concurrency=64, timeout_ms=TIMEOUT_MS)
def add(number: int, context: ToolCallContext) -> int:
    """Not to be done twice."""
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, f"{context.call_id} {number}\n".encode())
    os.close(ledger)
    return number


registry = ToolRegistry.of(add)
