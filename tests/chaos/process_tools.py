"""A tool of which only a few calls run at once, and a ledger of when they begin and end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.schemas.run import SideEffect

__all__ = ["AT_ONCE", "registry"]

AT_ONCE = 3
RUNS_S = 0.01


@tool(side_effect=SideEffect.WRITE, concurrency=AT_ONCE)
def few(number: int) -> int:
    """Take a while."""
    _note("+")
    time.sleep(RUNS_S)
    _note("-")
    return number


def _note(change: str) -> None:
    """One write to a file that is opened to append: lines are in order, whatever process writes."""
    with Path(os.environ["LEDGER"]).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{os.getpid()} {change}\n")


registry = ToolRegistry.of(few)
