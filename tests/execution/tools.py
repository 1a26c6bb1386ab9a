"""Tools for programs in tests, which wait, echo and fail on request."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError, ToolRegistry
from rookery.schemas.calls import ApprovalMode, AutoApproval, AutoRule
from rookery.schemas.run import SideEffect

__all__ = ["registry"]


@tool
def echo(value: Any) -> Any:
    """Return the argument."""
    return value


@tool
async def echo_soon(value: Any) -> Any:
    """Return the argument; programs await the call."""
    return value


@tool(timeout_ms=60_000)
def block(seconds: float, context: ToolCallContext) -> bool:
    """Block until the time is over or the call is cancelled; whether the time was over."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if context.cancelled():
            return False
        time.sleep(0.005)
    return True


@tool(timeout_ms=60_000)
async def pause(seconds: float) -> float:
    """Wait."""
    await asyncio.sleep(seconds)
    return seconds


@tool(side_effect=SideEffect.WRITE, idempotent=False, timeout_ms=60_000)
async def deliver(seconds: float) -> str:
    """A slow call that may not be repeated."""
    await asyncio.sleep(seconds)
    return "delivered"


@tool(side_effect=SideEffect.WRITE, idempotent=False, timeout_ms=60_000)
def deliver_now(seconds: float) -> str:
    """The same, as a synchronous call."""
    time.sleep(seconds)
    return "delivered"


@tool(timeout_ms=60_000)
def sit(book: str) -> None:
    """Write a line to a file, and block even if the call is cancelled."""
    with Path(book).open("a", encoding="utf-8") as lines:
        lines.write("sat\n")
    time.sleep(600)


@tool(timeout_ms=60_000)
async def until_there(path: str) -> str:
    """Wait for a file."""
    while not Path(path).exists():
        await asyncio.sleep(0.01)
    return "there"


@tool
async def put_there(path: str) -> str:
    """Make the file."""
    Path(path).touch()
    return "put"


@tool
def put_now(path: str) -> str:
    """Make the file, in a synchronous call."""
    Path(path).touch()
    return "put"


@tool
def fail(code: str) -> None:
    """Fail with this code."""
    raise ToolError(code, "as it was told")


@tool
def blob(count: int) -> str:
    """A long text."""
    return "x" * count


@tool(side_effect=SideEffect.WRITE, approval_policy=ApprovalMode.MANUAL)
def risky(what: str) -> str:
    """A call that needs an approver."""
    return what


@tool(side_effect=SideEffect.DATABASE, approval_policy=AutoApproval(AutoRule("args.count <= 3")))
def rows(count: int) -> list[int]:
    """Rows of a table; a rule approves of few."""
    return list(range(count))


@tool(timeout_ms=20)
async def linger() -> None:
    """A call that takes longer than it may."""
    await asyncio.sleep(600)


registry = ToolRegistry.of(
    echo,
    echo_soon,
    block,
    pause,
    deliver,
    deliver_now,
    sit,
    fail,
    blob,
    risky,
    until_there,
    put_there,
    put_now,
    rows,
    linger,
)
