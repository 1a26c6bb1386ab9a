"""Tools that workers serve in tests. What they do is written into the folder ``CRAFTS`` names, so
that it is known whoever dies; some of them wait until the test lets them go on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry, tool


def folder() -> Path:
    return Path(os.environ["CRAFTS"])


def note(ctx: ToolCallContext, what: str) -> None:
    """One line, written at once."""
    line = f"{what} {ctx.name} {ctx.idempotency_key} {ctx.attempt} {os.getpid()} {ctx.run_id}\n"
    with (folder() / "log").open("a") as log:
        log.write(line)


def hold(ctx: ToolCallContext) -> str:
    """Work until the test, or the run, has enough of it."""
    note(ctx, "began")
    while not (folder() / "go").exists():
        if ctx.cancelled():
            note(ctx, "stopped")
            raise ToolError("STOPPED", "as you like")
        time.sleep(0.01)
    note(ctx, "ended")
    return f"done in try {ctx.attempt}"


@tool
def price(item: str) -> int:
    """What something costs."""
    if item not in ("tea", "cake"):
        raise ToolError("NOT_SOLD", f"no {item} here")
    return {"tea": 3, "cake": 5}[item]


@tool
def who() -> int:
    """Which process answers."""
    time.sleep(0.01)
    return os.getpid()


@tool(timeout_ms=2_000)
def look(ctx: ToolCallContext) -> str:
    """Takes its time and may be repeated."""
    return hold(ctx)


@tool(side_effect="write", timeout_ms=2_000)
def send(ctx: ToolCallContext) -> str:
    """Takes its time and may not be repeated."""
    return hold(ctx)


@tool(side_effect="write", timeout_ms=60_000)
def build(ctx: ToolCallContext) -> str:
    """Takes very long."""
    return hold(ctx)


@tool(timeout_ms=60_000)
async def wait(ctx: ToolCallContext) -> str:
    """Waits for ever, and is stopped where it stands."""
    note(ctx, "began")
    try:
        await asyncio.Event().wait()
    finally:
        note(ctx, "stopped")
    return ""


@tool(max_request_bytes=4 << 20, max_response_bytes=8 << 20)
def double(text: str) -> str:
    """Large things in, larger ones out."""
    return text + text


@tool
def facts(ctx: ToolCallContext) -> dict[str, Any]:
    """What it is told of its call."""
    return {
        "name": ctx.name,
        "key": ctx.idempotency_key,
        "call": ctx.call_id,
        "run": ctx.run_id,
        "session": ctx.session_id,
        "attempt": ctx.attempt,
        "left_ms": (ctx.deadline_ms or 0) - int(time.time() * 1_000),
        "traceparent": ctx.traceparent,
    }


registry = ToolRegistry.of(price, who, look, send, build, wait, double, facts)
