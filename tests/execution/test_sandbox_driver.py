"""The driver of programs makes their synchronous calls on the loop, whose thread never blocks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest

from rookery.actors.execution.driver import (
    CallsRequested,
    Finished,
    RunInput,
    SandboxDriver,
    SyncCall,
)
from rookery.actors.sandbox import ProgramCall, Sandbox, Tool, ToolResult
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.run import Language, RunRequest, SessionLimits

SESSION = "driven"
TOOLS = [Tool(name="add")]
ADDING = "sum(add(n) for n in range(5))"


@pytest.fixture(scope="module", params=["fibers", "threads"])
def opened(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    engine = make_engine(has_fibers=request.param == "fibers")
    guest = PythonGuest(engine, GuestCache(cache_folder(os.environ)))
    with Sandbox(engine, [guest], b"the key of the tests") as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(opened: Sandbox) -> Iterator[Sandbox]:
    opened.create(SESSION, seed=b"1", now_ms=0, tools=TOOLS)
    yield opened
    opened.destroy(SESSION)


def run_input(sandbox: Sandbox, code: str, **limits: int) -> RunInput:
    environment = RunEnvironment(
        language=Language.PYTHON,
        build=sandbox.builds[Language.PYTHON],
        seed="00",
        limits=SessionLimits(**limits),
    )
    request = RunRequest(session_id=SESSION, code=code)
    return RunInput("run-1", SESSION, request, environment, TOOLS, 0, ())


async def add(call: ProgramCall) -> ToolResult:
    await asyncio.sleep(0)
    return ToolResult(call.args[0] * 10)


async def begun(sandbox: Sandbox, code: str, call: SyncCall, **limits: int) -> Any:
    return await SandboxDriver(sandbox).begin(run_input(sandbox, code, **limits), call)


def test_every_call_is_made_on_the_loop(sandbox: Sandbox):
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def call(request: ProgramCall) -> ToolResult:
            assert asyncio.get_running_loop() is loop
            return await add(request)

        step = await begun(sandbox, ADDING, call)
        assert isinstance(step, Finished)
        assert (step.result.result, step.kept) == (100, True)

    asyncio.run(main())


def test_the_loop_serves_others_while_a_program_computes(sandbox: Sandbox):
    async def main() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(others())
        code = "add(1)\nwhile True: pass"
        step = await begun(sandbox, code, add, cpu_ms=300, wall_ms=60_000)
        assert step.result.error.code == "TIMEOUT_CPU"
        assert turns > 10
        beside.cancel()

    asyncio.run(main())


def test_a_call_without_an_outcome_ends_the_step(sandbox: Sandbox):
    """It is open then, and the next step has its outcome."""

    async def main() -> None:
        async def call(request: ProgramCall) -> ToolResult | None:
            return None if request.id == 3 else await add(request)

        driver = SandboxDriver(sandbox)
        step = await driver.begin(run_input(sandbox, ADDING), call)
        assert isinstance(step, CallsRequested)
        assert [open_call.id for open_call in step.calls] == [3]
        last = await driver.next_step({3: ToolResult(20)})
        assert isinstance(last, Finished)
        assert last.result.result == 100

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_call_that_is_cancelled_or_fails_ends_the_step(sandbox: Sandbox, how: str):
    async def main() -> None:
        async def call(_request: ProgramCall) -> ToolResult:
            raise asyncio.CancelledError if how == "cancelled" else LookupError("no loop")

        step = await begun(sandbox, ADDING, call)
        if how == "cancelled":
            assert isinstance(step, CallsRequested)
        else:
            assert "no loop" in step.result.error.message

    asyncio.run(main())


def test_a_stopped_run_ends_although_its_call_does_not(sandbox: Sandbox):
    async def main() -> None:
        started = asyncio.Event()

        async def call(_request: ProgramCall) -> ToolResult:
            started.set()
            await asyncio.Event().wait()
            raise AssertionError

        driver = SandboxDriver(sandbox)
        step = asyncio.create_task(driver.begin(run_input(sandbox, ADDING), call))
        await started.wait()
        assert await driver.stop() is None
        ended = await step
        assert isinstance(ended, Finished)
        assert (ended.result.status, ended.kept) == ("cancelled", False)

    asyncio.run(main())
