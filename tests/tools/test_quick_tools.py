"""Quick functions as tools: they run on the event loop that calls them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import UNSET

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry, tool
from rookery.actors.tools.functions.local_host import LocalToolHost
from rookery.actors.tools.hosts.host import NotCalled
from rookery.schemas.calls import CallOutcome

PATIENCE_S = 90.0
LONG_MS = 60_000
BEGUN: list[str] = []


@tool(quick=True)
def where() -> str:
    """Returns the name of its thread."""
    return threading.current_thread().name


@tool(quick=True)
async def where_async() -> str:
    """Returns the name of its thread."""
    return threading.current_thread().name


@tool(quick=True)
async def linger(label: str) -> str:
    """Waits for ever."""
    BEGUN.append(label)
    await asyncio.sleep(LONG_MS)
    return "never"


@tool(quick=True)
def nap() -> None:
    """Blocks, although it says that it is quick."""
    time.sleep(0.05)


RAISES: dict[str, Callable[[], BaseException]] = {
    "own": lambda: ToolError("OUT_OF_PAPER", "no more sheets"),
    "bug": lambda: ZeroDivisionError("division by zero"),
    "exit": lambda: SystemExit(3),
    "cancelled": KeyboardInterrupt,
}


@tool(quick=True)
def fail(how: str) -> None:
    """Fails."""
    raise RAISES[how]()


@tool(quick=True)
async def fail_async(how: str) -> None:
    """Fails."""
    raise RAISES[how]()


@tool(quick=True)
def promise() -> int:
    """Returns a value of another type than declared."""
    return "a text"  # type: ignore[return-value]


@pytest.fixture
def host() -> Iterator[LocalToolHost]:
    tools = (where, where_async, linger, nap, fail, fail_async, promise)
    made = LocalToolHost(ToolRegistry.of(*tools))
    yield made
    assert made.close(PATIENCE_S)


def context(name: str, *args: Any) -> ToolCallContext:
    return ToolCallContext(name=name, args=list(args), kwargs={}, call_id="op-1")


def outcome(host: LocalToolHost, name: str, *args: Any, left_ms: int = LONG_MS) -> CallOutcome:
    return asyncio.run(host.call(context(name, *args), left_ms))


@pytest.mark.parametrize("name", ["where", "where_async"])
def test_a_quick_function_runs_on_the_loop_that_calls_it(host: LocalToolHost, name: str):
    assert outcome(host, name) == CallOutcome(value=threading.current_thread().name)


def test_only_a_quick_function_is_called_without_a_wait(host: LocalToolHost):
    """A coroutine and an unknown tool are left to ``call``."""
    found = [host.call_quickly(context(name), lambda: True) for name in ("where_async", "none")]
    assert found == [None, None]
    here = host.call_quickly(context("where"), lambda: True)
    assert here == CallOutcome(value=threading.current_thread().name)
    with pytest.raises(NotCalled):
        host.call_quickly(context("where"), lambda: False)


@pytest.mark.parametrize("name", ["where", "where_async"])
def test_a_quick_function_is_not_called_if_its_node_may_not_act(host: LocalToolHost, name: str):
    with pytest.raises(NotCalled):
        asyncio.run(host.call(context(name), LONG_MS, lambda: False))


@pytest.mark.parametrize(
    ("name", "how", "code"),
    [
        ("fail", "own", "OUT_OF_PAPER"),
        ("fail", "bug", "TOOL_ERROR"),
        ("fail", "exit", "TOOL_ERROR"),
        ("fail", "cancelled", "TOOL_ERROR"),
        ("fail_async", "own", "OUT_OF_PAPER"),
        ("fail_async", "bug", "TOOL_ERROR"),
        ("fail_async", "exit", "TOOL_ERROR"),
    ],
)
def test_every_exception_of_a_quick_function_fails_only_its_call(
    host: LocalToolHost, name: str, how: str, code: str
):
    wrong = outcome(host, name, how).error
    assert wrong is not UNSET
    assert wrong.code == code
    assert outcome(host, "where").error is UNSET


def test_the_result_of_a_quick_function_is_checked(host: LocalToolHost):
    wrong = outcome(host, "promise").error
    assert wrong is not UNSET
    assert wrong.code == "INVALID_RESULT"


def test_a_quick_coroutine_past_its_timeout_is_cancelled(host: LocalToolHost):
    async def scenario() -> CallOutcome:
        late = await host.call(context("linger", "late"), 10)
        await host.wait_finished("op-1")
        return late

    wrong = asyncio.run(scenario()).error
    assert wrong is not UNSET
    assert wrong.code == "TIMEOUT_TOOL"
    assert "late" in BEGUN


@pytest.mark.parametrize("begun", [True, False])
def test_a_quick_coroutine_that_is_cancelled_ends_and_begins_only_before(
    host: LocalToolHost, begun: bool
):
    label = f"cancelled {begun}"

    async def scenario() -> CallOutcome:
        call = asyncio.ensure_future(host.call(context("linger", label), LONG_MS))
        asyncio.get_running_loop().call_later(0.01 if begun else 0, host.cancel, "op-1")
        return await call

    wrong = asyncio.run(scenario()).error
    assert wrong is not UNSET
    assert wrong.code == "CANCELLED"
    assert (label in BEGUN) is begun


def test_a_function_that_blocks_although_it_is_declared_quick_is_named_in_the_log(
    host: LocalToolHost, caplog: pytest.LogCaptureFixture
):
    assert outcome(host, "nap").error is UNSET
    [record] = [record for record in caplog.records if record.__dict__["tool"] == "nap"]
    assert record.message.startswith("a quick tool held up its node")
