"""Registered tools, the registry of seed 000, and calls of handlers."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent import futures
from contextvars import ContextVar
from typing import Any

import pytest

from rookery.actors.tools import ToolCallContext, ToolError, ToolRegistry, tool
from rookery.actors.tools.authoring import RegisteredTool
from rookery.schemas.calls import Capability, CapabilityLimits
from rookery.schemas.errors import Refused


def capability(name: str, **fields: Any) -> Capability:
    return Capability(name=name, description="", **fields)


def registered(name: str, **fields: Any) -> RegisteredTool:
    return RegisteredTool.sync(capability(name, **fields), lambda ctx: ctx.args)


def context(*args: Any, **kwargs: Any) -> ToolCallContext:
    return ToolCallContext(name="probe", args=list(args), kwargs=kwargs)


# --- the registry ---------------------------------------------------------------------------------


def test_names_and_capabilities_are_sorted():
    registry = ToolRegistry()
    for name in ("zebra", "ant", "_bee"):
        registry.register(registered(name))
    assert registry.names() == ["_bee", "ant", "zebra"]
    assert [c.name for c in registry.capabilities()] == registry.names()
    assert [t.capability.name for t in registry] == registry.names()
    assert len(registry) == 3


def test_a_later_tool_of_the_same_name_replaces_the_earlier():
    registry, second = ToolRegistry.of(registered("add")), registered("add")
    registry.register(second)
    assert registry.get("add") is second
    assert len(registry) == 1


def test_an_unknown_name_is_none():
    registry = ToolRegistry.of(registered("add"))
    assert registry.contains("add")
    assert not registry.contains("sub")
    assert registry.get("sub") is None


@pytest.mark.parametrize("name", ["fetch-json", "1st", "", "a.b", "naïve", "a b", "x" * 200 + "!"])
def test_a_name_no_program_could_write_is_refused(name: str):
    registry = ToolRegistry()
    with pytest.raises(Refused, match=r"^INVALID_TOOL_NAME") as caught:
        registry.register(registered(name))
    assert len(caught.value.message) < 150
    assert not registry.names()


def test_a_registry_is_made_of_functions_and_tools():
    @tool
    def add(a: int, b: int) -> int:
        return a + b

    registry = ToolRegistry.of(add, registered("echo"))
    assert registry.names() == ["add", "echo"]
    with pytest.raises(Refused, match=r"^INVALID_TOOL_NAME: two tools are called add$"):
        ToolRegistry.of(add, registered("add"))


@pytest.mark.parametrize("stranger", [print, 3, None, "add"])
def test_an_object_that_is_no_tool_is_refused(stranger: Any):
    with pytest.raises(Refused, match=r"^INVALID_ARGUMENT: .* is no tool \(decorate"):
        ToolRegistry.of(stranger)


# --- what a capability declares -------------------------------------------------------------------


@pytest.mark.parametrize(
    "schemas",
    [
        {"input_schema": {"type": "nothing"}},
        {"input_schema": {}},
        {"input_schema": {"type": "string"}},
        {"input_schema": True},
        {"input_schema": {"type": "array", "items": {"$ref": "#/$defs/missing"}}},
        {"output_schema": {"pattern": "("}},
        {"output_schema": {"default": float("nan")}},
        {"output_schema": object()},
    ],
)
def test_a_tool_with_an_unsound_schema_cannot_be_made(schemas: dict[str, Any]):
    with pytest.raises(Refused, match=r"^INVALID_ARGUMENT: the (input|output) schema of add "):
        registered("add", **schemas)


@pytest.mark.parametrize(
    "limits",
    [
        {"timeout_ms": 0},
        {"max_request_bytes": -1},
        {"max_response_bytes": 2**32},
        {"concurrency": None},
        {"concurrency": 1.5},
        {"rate_per_min": 0},
    ],
    ids=str,
)
def test_a_limit_out_of_range_is_refused(limits: dict[str, Any]):
    (name,) = limits
    with pytest.raises(Refused, match=rf"^INVALID_ARGUMENT: {name} of add is "):
        registered("add", limits=CapabilityLimits(**limits))


# --- calling --------------------------------------------------------------------------------------


def test_both_kinds_of_handler_are_awaited():
    async def twice(ctx: ToolCallContext) -> Any:
        return [ctx.args, ctx.kwargs]

    async def both() -> None:
        sync = RegisteredTool.sync(capability("a"), lambda ctx: [ctx.args, ctx.kwargs])
        asynchronous = RegisteredTool.asynchronous(capability("b"), twice)
        assert (sync.async_mode, asynchronous.async_mode) == (False, True)
        assert await sync.call(context(1, b=2)) == [[1], {"b": 2}]
        assert await asynchronous.call(context(1, b=2)) == [[1], {"b": 2}]

    asyncio.run(both())


def test_a_synchronous_handler_never_blocks_the_loop():
    began, go_on = threading.Event(), threading.Event()

    def handler(ctx: ToolCallContext) -> str:
        began.set()
        assert go_on.wait(30)
        return threading.current_thread().name

    async def main(threads: futures.ThreadPoolExecutor) -> None:
        blocking = RegisteredTool.sync(capability("wait"), handler)
        call = asyncio.ensure_future(blocking.call_on(threads, context()))
        while not began.is_set():
            await asyncio.sleep(0)
        assert not call.done()
        go_on.set()
        assert (await call).startswith("tools")

    with futures.ThreadPoolExecutor(1, thread_name_prefix="tools") as threads:
        asyncio.run(main(threads))


def test_a_handler_sees_the_context_variables_of_its_caller():
    trace: ContextVar[str] = ContextVar("trace", default="")

    async def main() -> None:
        trace.set("of the caller")
        reads = RegisteredTool.sync(capability("read"), lambda _: trace.get())
        assert await reads.call(context()) == "of the caller"

    asyncio.run(main())


def test_a_handler_that_runs_off_the_end_of_an_iterator_fails_like_any_other():
    empty = RegisteredTool.sync(capability("first"), lambda ctx: next(iter(ctx.args)))
    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asyncio.wait_for(empty.call_on(None, context()), 30))


@pytest.mark.parametrize(
    "raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, futures.CancelledError]
)
def test_a_handler_can_neither_end_nor_cancel_its_caller(raised: type[BaseException]):
    def handler(ctx: ToolCallContext) -> None:
        raise raised

    leaves = RegisteredTool.sync(capability("leave"), handler)
    with pytest.raises(RuntimeError, match=rf"the tool raised {raised.__name__}"):
        asyncio.run(leaves.call_on(None, context()))


def test_an_asynchronous_handler_cannot_end_the_loop_it_runs_on():
    async def handler(ctx: ToolCallContext) -> None:
        raise SystemExit(3)

    leaves = RegisteredTool.asynchronous(capability("leave"), handler)
    with pytest.raises(RuntimeError, match="the tool raised SystemExit"):
        asyncio.run(leaves.call_on(None, context()))


def test_cancelling_a_call_stops_an_asynchronous_handler():
    stopped = []

    async def forever(ctx: ToolCallContext) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            stopped.append(ctx.name)

    async def main() -> None:
        waits = RegisteredTool.asynchronous(capability("wait"), forever)
        call = asyncio.ensure_future(waits.call(context()))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())
    assert stopped == ["probe"]


def test_a_call_is_not_cancelled_by_default():
    assert context().cancelled() is False


def test_a_tool_error_has_a_code_and_a_message_and_survives_a_pickle():
    failure = pickle.loads(pickle.dumps(ToolError("CARD_DECLINED", "no funds")))
    assert (failure.code, failure.message) == ("CARD_DECLINED", "no funds")
    assert str(failure) == "CARD_DECLINED: no funds"
