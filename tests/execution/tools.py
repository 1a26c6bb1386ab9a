"""Tools for programs in tests: they wait, echo, and fail as they are told."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from rookery.actors import tool
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolError, ToolRegistry
from rookery.schemas.capability import ApprovalMode
from rookery.schemas.run import SideEffect

__all__ = ["registry"]


@tool
def echo(value: Any) -> Any:
    """Give it back."""
    return value


@tool
async def echo_soon(value: Any) -> Any:
    """Give it back when awaited."""
    return value


@tool(timeout_ms=60_000)
def block(seconds: float, context: ToolCallContext) -> bool:
    """Stand still, until it is over or nobody wants it any more; whether it came to the end."""
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
    """Takes its time and may not be done twice."""
    await asyncio.sleep(seconds)
    return "delivered"


@tool(side_effect=SideEffect.WRITE, idempotent=False, timeout_ms=60_000)
def deliver_now(seconds: float) -> str:
    """The same, without being awaited."""
    time.sleep(seconds)
    return "delivered"


@tool(timeout_ms=60_000)
def sit(book: str) -> None:
    """Make a line in a book, and stay, whoever wants it to leave."""
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
    """Make the file, without being awaited."""
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
    """Not without asking somebody."""
    return what


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
)
