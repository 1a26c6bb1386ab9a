"""Functions of this process as tools: threads, their own loop, timeouts, cancellation, shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry, tool
from rookery.actors.tools.authoring import RegisteredTool
from rookery.actors.tools.functions.local_host import LocalToolHost
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import Refused
from tests.tools.tool_fixtures import capability

PATIENCE_S = 90.0
LONG_MS = 60_000


class Hands:
    """State that the functions of a test record and wait for."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun = threading.Semaphore(0)
        self.seen: list[Any] = []

    def await_begun(self) -> None:
        assert self.begun.acquire(timeout=PATIENCE_S)


HANDS = Hands()


def until(holds: Callable[[], object]) -> None:
    """Wait, outside every loop, until the condition holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hands]:
    made = Hands()
    monkeypatch.setitem(globals(), "HANDS", made)
    yield made
    made.go.set()


@tool
def add(a: int, b: int = 0) -> int:
    """Adds."""
    return a + b


@tool(timeout_ms=100)
def block(ctx: ToolCallContext) -> bool:
    """Returns when the test lets it; records whether it was cancelled."""
    hands = HANDS
    hands.begun.release()
    hands.go.wait(PATIENCE_S)
    hands.seen.append(ctx.cancelled())
    return ctx.cancelled()


@tool
async def linger() -> str:
    """Waits for ever."""
    hands = HANDS
    hands.begun.release()
    try:
        await asyncio.sleep(LONG_MS)
    except asyncio.CancelledError:
        hands.seen.append("cancelled")
        raise
    return "never"


@tool
async def stubborn() -> str:
    """Returns a value although it is cancelled."""
    HANDS.begun.release()
    try:
        await asyncio.sleep(LONG_MS)
    except asyncio.CancelledError:
        return "all the same"
    return "never"


@tool
def where() -> list[str]:
    """Returns the name of its thread."""
    return [threading.current_thread().name]


@tool
async def where_async() -> list[str]:
    """Returns the name of its thread."""
    return [threading.current_thread().name]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


RAISES: dict[str, Callable[[], BaseException]] = {
    "own": lambda: ToolError("OUT_OF_PAPER", "no more sheets"),
    "coded": lambda: Refused("UNSUPPORTED_FEATURE", "not here"),
    "bug": lambda: ZeroDivisionError("division by zero"),
    "unprintable": Unprintable,
    "exit": lambda: SystemExit(3),
    "farewell": lambda: GeneratorExit("no end of its own"),
}


@tool
def fail(how: str) -> None:
    """Fails."""
    raise RAISES[how]()


@tool
async def fail_async(how: str) -> None:
    """Fails."""
    raise RAISES[how]()


@tool(max_response_bytes=100)
def echo(value: Any) -> Any:
    """Returns its argument."""
    return {"nan": float("nan")} if value == "nan" else value


@tool
def promise() -> int:
    """Returns a value of another type than declared."""
    return "a text"  # type: ignore[return-value]


ALL = (add, block, linger, stubborn, where, where_async, fail, fail_async, echo, promise)


@pytest.fixture
def host() -> Iterator[LocalToolHost]:
    made = LocalToolHost(ToolRegistry.of(*ALL))
    yield made
    HANDS.go.set()
    assert made.close(PATIENCE_S)


def context(name: str, *args: Any, call_id: str = "op-1", **kwargs: Any) -> ToolCallContext:
    return ToolCallContext(name=name, args=list(args), kwargs=kwargs, call_id=call_id)


def outcome(host: LocalToolHost, name: str, *args: Any, **kwargs: Any) -> CallOutcome:
    return asyncio.run(host.call(context(name, *args, **kwargs), LONG_MS))


def test_a_function_is_called_and_its_value_is_plain_json(host: LocalToolHost):
    assert outcome(host, "add", 1, b=2) == CallOutcome(value=3)


def test_functions_run_on_threads_and_coroutines_on_a_loop_of_their_own(host: LocalToolHost):
    assert outcome(host, "where").value == ["rookery-tool"]
    assert outcome(host, "where_async").value == ["rookery-tools"]


def test_a_missing_function_is_unknown(host: LocalToolHost):
    wrong = outcome(host, "sub").error
    assert wrong.code == "UNKNOWN_TOOL"


UNTOLD = "{} failed: see call op-1 in the log of its node or worker"


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("own", "OUT_OF_PAPER", "no more sheets"),
        ("coded", "TOOL_ERROR", UNTOLD),
        ("bug", "TOOL_ERROR", UNTOLD),
        ("unprintable", "TOOL_ERROR", UNTOLD),
        ("exit", "TOOL_ERROR", UNTOLD),
        ("farewell", "TOOL_ERROR", UNTOLD),
    ],
)
def test_every_exception_of_a_function_fails_only_its_call(
    host: LocalToolHost, name: str, how: str, code: str, message: str
):
    wrong = outcome(host, name, how).error
    assert (wrong.code, wrong.message) == (code, message.format(name))
    assert outcome(host, "add", 1).value == 1


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("echo", ("x" * 100,), "PAYLOAD_TOO_LARGE"),
        ("echo", ("nan",), "SERIALIZE_ERROR"),
        ("promise", (), "INVALID_RESULT"),
    ],
)
def test_a_result_that_was_not_declared_is_a_failure(
    host: LocalToolHost, name: str, args: tuple[Any, ...], code: str
):
    assert outcome(host, name, *args).error.code == code


# --- time and cancelling --------------------------------------------------------------------------


def test_a_function_past_its_timeout_is_cancelled_and_its_late_result_logged(
    host: LocalToolHost, hands: Hands, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "rookery.actors.tools.functions.local_host")

    async def scenario() -> None:
        late = await host.call(context("block"), 10)
        assert late.error.code == "TIMEOUT_TOOL"
        assert "100 ms" in late.error.message
        assert not caplog.records
        hands.go.set()
        await host.wait_finished("op-1")

    asyncio.run(scenario())
    assert hands.seen == [True]
    assert [record.message for record in caplog.records] == ["late result dropped"]


def test_a_coroutine_past_its_timeout_is_cancelled(host: LocalToolHost, hands: Hands):
    async def scenario() -> CallOutcome:
        late = await host.call(context("linger"), 10)
        await host.wait_finished("op-1")
        return late

    assert asyncio.run(scenario()).error.code == "TIMEOUT_TOOL"
    assert hands.seen == ["cancelled"]


@pytest.mark.parametrize(
    ("name", "expected"), [("linger", "CANCELLED"), ("stubborn", "all the same"), ("block", True)]
)
def test_a_cancelled_call_ends_as_soon_as_its_function_returns(
    host: LocalToolHost, hands: Hands, name: str, expected: Any
):
    async def scenario() -> CallOutcome:
        call = asyncio.ensure_future(host.call(context(name), LONG_MS))
        await asyncio.to_thread(hands.await_begun)
        host.cancel("op-1")
        hands.go.set()
        return await call

    ended = asyncio.run(scenario())
    if expected == "CANCELLED":
        assert ended.error.code == "CANCELLED"
    else:
        assert ended == CallOutcome(value=expected)


def test_a_coroutine_that_has_acted_cannot_be_cancelled(hands: Hands):
    """Its result is about to arrive, and is the only evidence that the coroutine acted."""
    single = capability("single", concurrency=1, input_schema={"type": "array"})

    async def act(ctx: ToolCallContext) -> str:
        return "acted"

    host = LocalToolHost(ToolRegistry.of(RegisteredTool.asynchronous(single, act)))
    host._pool.submit(lambda: (hands.begun.release(), hands.go.wait(PATIENCE_S)))
    hands.await_begun()  # The thread that handles results is busy.

    async def scenario() -> CallOutcome:
        call = asyncio.ensure_future(host.call(context("single"), LONG_MS))
        await asyncio.to_thread(until, lambda: host._pool._jobs)
        host.cancel("op-1")
        host._loop.call_soon_threadsafe(hands.go.set)
        return await call

    assert asyncio.run(scenario()) == CallOutcome(value="acted")
    assert host.close(PATIENCE_S)


def test_a_coroutine_that_is_cancelled_before_it_has_begun_never_begins(
    host: LocalToolHost, hands: Hands
):
    async def scenario() -> CallOutcome:
        busy = threading.Event()
        host._loop.call_soon_threadsafe(busy.wait, PATIENCE_S)
        call = asyncio.ensure_future(host.call(context("linger"), LONG_MS))
        await asyncio.sleep(0)
        host.cancel("op-1")
        busy.set()
        return await call

    assert asyncio.run(scenario()).error.code == "CANCELLED"
    assert not hands.begun.acquire(blocking=False)


@pytest.mark.parametrize(("code", "left_ms"), [("TIMEOUT_TOOL", 10), ("CANCELLED", LONG_MS)])
def test_a_call_that_waits_for_a_thread_for_too_long_or_is_cancelled_never_begins(
    hands: Hands, code: str, left_ms: int
):
    single = capability("single", concurrency=1, input_schema={"type": "array"})

    def hold(ctx: ToolCallContext) -> str:
        hands.begun.release()
        hands.go.wait(PATIENCE_S)
        return ctx.call_id

    host = LocalToolHost(ToolRegistry.of(RegisteredTool.sync(single, hold)))

    async def scenario() -> CallOutcome:
        first = asyncio.ensure_future(host.call(context("single"), LONG_MS))
        await asyncio.to_thread(hands.await_begun)
        second = asyncio.ensure_future(host.call(context("single", call_id="op-2"), left_ms))
        await asyncio.sleep(0)
        if code == "CANCELLED":
            host.cancel("op-2")
            host.cancel("op-2")
        await host.wait_finished("op-2")
        hands.go.set()
        assert (await first).value == "op-1"
        return await second

    assert asyncio.run(scenario()).error.code == code
    assert not hands.begun.acquire(blocking=False)
    assert host.close(PATIENCE_S)


def test_an_unknown_call_is_neither_cancelled_nor_waited_for(host: LocalToolHost):
    host.cancel("nobody")
    asyncio.run(host.wait_finished("nobody"))


def test_many_calls_run_at_once(host: LocalToolHost, hands: Hands):
    async def scenario() -> list[CallOutcome]:
        calls = [
            asyncio.ensure_future(host.call(context("block", call_id=str(n)), LONG_MS))
            for n in range(16)
        ]
        for _ in calls:
            await asyncio.to_thread(hands.await_begun)
        hands.go.set()
        return await asyncio.gather(*calls)

    assert {ended.value for ended in asyncio.run(scenario())} == {False}


# --- leaving --------------------------------------------------------------------------------------


def test_closing_cancels_all_calls_and_waits_for_those_that_react(hands: Hands):
    host = LocalToolHost(ToolRegistry.of(*ALL))

    async def scenario() -> None:
        calls = [
            asyncio.ensure_future(host.call(context(name, call_id=name), LONG_MS))
            for name in ("linger", "block")
        ]
        for _ in calls:
            await asyncio.to_thread(hands.await_begun)
        threading.Timer(0.05, hands.go.set).start()
        assert await asyncio.to_thread(host.close, PATIENCE_S)
        await asyncio.gather(*calls)

    asyncio.run(scenario())
    assert sorted(map(str, hands.seen)) == ["True", "cancelled"]


def test_a_function_that_never_returns_blocks_neither_host_nor_process():
    program = """if True:
        import asyncio, threading
        from rookery.actors.tools import ToolCallContext, ToolRegistry, tool
        from rookery.actors.tools.functions.local_host import LocalToolHost

        @tool
        def hang() -> None:
            threading.Event().wait()

        host = LocalToolHost(ToolRegistry.of(hang))
        ctx = ToolCallContext(name="hang", args=[], kwargs={}, call_id="op")
        print(asyncio.run(host.call(ctx, 50)).error.code, host.close(0.05))
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.split() == ["TIMEOUT_TOOL", "False"]


# --- threads --------------------------------------------------------------------------------------


def test_threads_are_made_when_needed_and_no_more_than_allowed():
    threads, gate, begun = DaemonThreadPool(2), threading.Event(), threading.Semaphore(0)

    def hold() -> str:
        begun.release()
        assert gate.wait(PATIENCE_S)
        return threading.current_thread().name

    held = [threads.submit(hold) for _ in range(3)]
    assert begun.acquire(timeout=PATIENCE_S)
    assert begun.acquire(timeout=PATIENCE_S)
    assert not held[2].running()
    assert held[2].cancel()
    gate.set()
    assert [future.result(PATIENCE_S) for future in held[:2]] == ["rookery-tool"] * 2
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(PATIENCE_S)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        threads.submit(hold)


def test_an_idle_thread_holds_no_object_of_its_last_call():
    class Thing:
        pass

    threads = DaemonThreadPool(1)
    threads.submit(Thing).result(PATIENCE_S)

    def is_gone() -> bool:
        gc.collect()
        return not any(isinstance(one, Thing) for one in gc.get_objects())

    until(is_gone)
    threads.shutdown()
