"""The fallback: the same programs in a component, which has no images."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import wasmtime

from rookery.actors.sandbox import ProgramCall, Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.fallback.component_guest import ComponentGuest
from rookery.actors.sandbox.python.link import LinkPlan
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.factory import open_python_guest
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from tests.sandbox.programs import CALLS, CLOSURES, without_time
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later
from tests.sandbox.sessions.test_limits import LIMITS


@pytest.fixture(scope="module")
def component(engine: wasmtime.Engine, cache: GuestCache) -> ComponentGuest:
    return ComponentGuest(engine, cache)


@pytest.fixture(scope="module")
def whole(engine: wasmtime.Engine, component: ComponentGuest) -> Iterator[Sandbox]:
    with Sandbox(engine, [component], KEY, ready=1) as sandbox:
        yield sandbox


@pytest.fixture
def fallback(whole: Sandbox, request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(whole, f"c{abs(hash(request.node.nodeid))}")
    yield stage
    stage.end()


@pytest.mark.parametrize(
    "broken", [LookupError("no such export"), GuestStopped("RUNTIME_ERROR", "a trap")]
)
def test_the_component_is_used_if_linking_fails(
    engine: wasmtime.Engine,
    cache: GuestCache,
    component: ComponentGuest,
    monkeypatch: pytest.MonkeyPatch,
    broken: Exception,
):
    def instantiate(*_: Any) -> None:
        raise broken

    messages: list[str] = []
    assert isinstance(open_python_guest(engine, cache, messages.append), PythonGuest)
    monkeypatch.setattr(LinkPlan, "instantiate", instantiate)
    guest = open_python_guest(engine, cache, messages.append)
    assert isinstance(guest, ComponentGuest)
    assert guest.build == component.build
    assert str(broken) in messages[-1]


def test_it_runs_what_the_linked_guest_runs(fallback: Stage, stage: Stage):
    code = "import time, random\n[1 + add(2), await fetch(3), time.monotonic(), round(time.time())]"
    outcomes = [s.run(f"print('é')\n{code}") for s in (fallback, stage)]
    assert outcomes[0].result[:2] == outcomes[1].result[:2] == [3, 6]
    assert outcomes[0].result[3] == outcomes[1].result[3]
    assert outcomes[0].external_calls[0].request_digest == (
        outcomes[1].external_calls[0].request_digest
    )
    assert outcomes[0].stdout == "é\n"


@pytest.mark.parametrize("name", ["cpu", "wall", "one allocation", "stack", "calls"])
def test_a_limit_undoes_the_effects_of_the_run(fallback: Stage, name: str):
    source, limits, _, code = LIMITS[name]
    fallback.run(CLOSURES + "x = ['kept']")
    assert fallback.code(f"x.append(c())\n{source}", limits=limits) == code
    assert fallback.value("[x, c(), next(squares)]") == [["kept"], 2, 4]


def test_limits_that_wasmtime_reports_as_text_have_their_codes(fallback: Stage):
    deep = "x = []\nfor _ in range(10 ** 5): x = [x]\nrepr(x)"
    patient = {"cpu_ms": 60_000, "wall_ms": 60_000}
    assert fallback.code(deep, limits=patient) == "STACK_OVERFLOW"
    large = {"x": "x" * 100_000_000}
    assert fallback.code("1", inputs=large, limits=patient) == "MEMORY_EXCEEDED"
    outcome = fallback.run("import inspect\ninspect.os.abort()")
    assert outcome.error is not None
    assert outcome.error.message.endswith("wasm `unreachable` instruction executed")


def test_a_slow_tool_does_not_stop_other_sessions(fallback: Stage, whole: Sandbox):
    called, finish = threading.Event(), threading.Event()

    def slow(_call: ProgramCall) -> ToolResult:
        called.set()
        finish.wait(60)
        return ToolResult(3)

    patient = {"wall_ms": 60_000}
    with ThreadPoolExecutor(1) as pool:
        held_up = pool.submit(fallback.value, "add(1)", answer=slow, limits=patient)
        assert called.wait(60)
        other = Stage(whole, "other")
        assert other.value("add(1, 1)", limits=patient) == 2
        other.end()
        assert not held_up.done()
        finish.set()
        assert held_up.result(60) == 3


def test_a_run_that_waits_for_the_lock_ends_at_its_limit(fallback: Stage, whole: Sandbox):
    """One component computes at a time; the time of the waiting run counts."""
    called = threading.Event()

    def begun(_call: ProgramCall) -> ToolResult:
        called.set()
        return ToolResult(1)

    endless = {"cpu_ms": 60_000, "wall_ms": 60_000}
    other = Stage(whole, "other")
    other.run("1")
    with ThreadPoolExecutor(1) as pool:
        computes = pool.submit(
            fallback.code, "add(1)\nwhile True: pass", answer=begun, limits=endless
        )
        assert called.wait(60)
        end_s = time.monotonic() + 60
        while (waited := other.run("1", limits={"wall_ms": 50})).error is None:
            assert time.monotonic() < end_s  # The call released the lock: it is soon taken again.
        assert waited.error.code == "TIMEOUT_WALL"
        assert not computes.done()
        whole.cancel(fallback.name)
        assert computes.result(60) == "CANCELLED"
    other.end()


def test_a_suspended_run_is_resumed_from_its_log(fallback: Stage, whole: Sandbox):
    fallback.run(CLOSURES)
    awake = Stage(whole, "awake")
    awake.run(CLOSURES)
    answered = awake.run(
        CALLS, answer=lambda c: ToolResult("y") if c.name == "write" else later()(c)
    )
    awake.end()
    waiting = fallback.wait(CALLS, answer=later("write", "fetch"))
    for value in ("y", 10):
        taken = whole.snapshot(fallback.name)
        whole.restore(taken.data, tools=TOOLS)
        assert isinstance(waiting, SuspendedRun)
        waiting = fallback.resume(answers={waiting.calls[0].id: ToolResult(value)})
    assert without_time(waiting) == without_time(answered)
    assert fallback.value("c()") == 4
