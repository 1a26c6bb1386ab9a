"""Tools of a worker that tests add and remove. Each call writes when it began and ended."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from rookery.actors.tools import ToolCallContext, ToolRegistry, tool


def folder() -> Path:
    return Path(os.environ["CRAFTS"])


def write(what: str, number: int, ctx: ToolCallContext) -> None:
    with (folder() / "calls").open("a") as log:
        log.write(f"{what} {number} {ctx.run_id}\n")


@tool(timeout_ms=60_000, concurrency=100)
async def work(number: int, ctx: ToolCallContext) -> int:
    """Work until the test lets it go; 0 ends at once."""
    write("began", number, ctx)
    while number and not (folder() / "go").exists():
        await asyncio.sleep(0.01)
    write("ended", number, ctx)
    return number


@tool(timeout_ms=2_000, concurrency=100)
async def brief(number: int, ctx: ToolCallContext) -> int:
    """The same, for a worker that dies: its calls are made again after this time."""
    write("began", number, ctx)
    while not (folder() / "go").exists():
        await asyncio.sleep(0.01)
    write("ended", number, ctx)
    return number


@tool(side_effect="write", timeout_ms=60_000, concurrency=100)
async def act(number: int, ctx: ToolCallContext) -> int:
    """Act once."""
    write("began", number, ctx)
    write("ended", number, ctx)
    return number


registry = ToolRegistry.of(work, brief, act)
