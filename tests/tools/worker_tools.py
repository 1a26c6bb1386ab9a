"""Tools that workers serve in tests. They write their calls to the folder that ``CRAFTS`` names, so
that the record outlives every process; some wait until the test lets them continue.
"""

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
    """Write one line at once."""
    line = f"{what} {ctx.name} {ctx.idempotency_key} {ctx.attempt} {os.getpid()} {ctx.run_id}\n"
    with (folder() / "log").open("a") as log:
        log.write(line)


def hold(ctx: ToolCallContext) -> str:
    """Work until the test or the run ends the call."""
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
    """Return a price."""
    if item not in ("tea", "cake"):
        raise ToolError("NOT_SOLD", f"no {item} here")
    return {"tea": 3, "cake": 5}[item]


@tool
def process_id() -> int:
    """Return the id of the process."""
    time.sleep(0.01)
    return os.getpid()


@tool(timeout_ms=2_000)
def look(ctx: ToolCallContext) -> str:
    """A slow call that may be repeated."""
    return hold(ctx)


@tool(side_effect="write", timeout_ms=2_000)
def send(ctx: ToolCallContext) -> str:
    """A slow call that may not be repeated."""
    return hold(ctx)


@tool(side_effect="write", timeout_ms=60_000)
def build(ctx: ToolCallContext) -> str:
    """A very slow call."""
    return hold(ctx)


@tool(timeout_ms=60_000)
async def wait(ctx: ToolCallContext) -> str:
    """Wait for ever, until it is stopped."""
    note(ctx, "began")
    try:
        await asyncio.Event().wait()
    finally:
        note(ctx, "stopped")
    return ""


@tool(max_request_bytes=4 << 20, max_response_bytes=8 << 20)
def double(text: str) -> str:
    """Return twice the argument."""
    return text + text


@tool
def facts(ctx: ToolCallContext) -> dict[str, Any]:
    """Return the context of the call."""
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


registry = ToolRegistry.of(price, process_id, look, send, build, wait, double, facts)
