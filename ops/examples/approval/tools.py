"""A tool that needs an approval, because it pays. ``README.md`` says what to type.

The tool writes one line per payment to a file, which shows that each payment happened once.
"""

from __future__ import annotations

import os
from pathlib import Path

from rookery.actors import tool
from rookery.actors.tools import ToolRegistry
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.run import SideEffect

__all__ = ["balance", "pay", "registry"]

BOOK = Path(os.environ.get("PAYMENTS", "payments.txt"))


@tool(side_effect=SideEffect.READ)
def balance() -> int:
    """The rest of a hundred."""
    paid = BOOK.read_text(encoding="utf-8").splitlines() if BOOK.exists() else []
    return 100 - sum(int(line.split()[0]) for line in paid)


@tool(side_effect=SideEffect.WRITE, idempotent=False, approval_policy=ApprovalMode.MANUAL)
def pay(to: str, amount: int) -> str:
    """Pay an amount. An approver has to approve each payment first."""
    with BOOK.open("a", encoding="utf-8") as book:
        book.write(f"{amount} {to}\n")
    return f"paid {amount} to {to}"


registry = ToolRegistry.of(balance, pay)
