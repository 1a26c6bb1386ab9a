"""Every limit has its own status and code, and ends only the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rookery.actors.sandbox import ProgramCall, SuspendedRun, ToolResult
from rookery.schemas.run import CallStatus
from tests.sandbox.session_fixture import Stage, later

LIMITS: dict[str, tuple[str, dict[str, int], str, str]] = {
    "cpu": ("while True: pass", {"cpu_ms": 100}, "timeout", "TIMEOUT_CPU"),
    "cpu in C": ("3 ** (3 ** 19)", {"cpu_ms": 100}, "timeout", "TIMEOUT_CPU"),
    "wall": ("while True: pass", {"wall_ms": 200}, "timeout", "TIMEOUT_WALL"),
    "one allocation": (
        "bytearray(200 << 20)",
        {},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "memory bit by bit": (
        "rest = []\nwhile True: rest.append(str(len(rest)) * 50_000)",
        {"memory_mb": 24},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "stack": ("def f(): f()\nf()", {}, "resource_exhausted", "STACK_OVERFLOW"),
    "stack in C": (
        "import inspect\ninspect.sys.setrecursionlimit(10**6)\ndef f(): return f()\nf()",
        {"cpu_ms": 20_000, "wall_ms": 20_000, "memory_mb": 512},
        "resource_exhausted",
        "STACK_OVERFLOW",
    ),
    "calls": (
        "for i in range(9): add(i)",
        {"max_external_calls": 8},
        "resource_exhausted",
        "EXTERNAL_CALLS_EXCEEDED",
    ),
    "awaited calls": (
        "import asyncio\nawait asyncio.gather(*map(fetch, range(9)))",
        {"max_external_calls": 8},
        "resource_exhausted",
        "EXTERNAL_CALLS_EXCEEDED",
    ),
    "a dead interpreter": (
        "import inspect\ninspect.os._exit(0)",
        {},
        "runtime_error",
        "RUNTIME_ERROR",
    ),
    "a crashed interpreter": (
        "import inspect\ninspect.os.abort()",
        {},
        "runtime_error",
        "RUNTIME_ERROR",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_ends_the_run_and_undoes_its_effects(stage: Stage, name: str):
    source, limits, status, code = LIMITS[name]
    stage.run("def counter():\n    n = 0\n    def more():\n        nonlocal n; n += 1; return n")
    stage.run("x = ['kept']\ng = (i * i for i in range(9))\nnext(g); next(g)")
    outcome = stage.run(f"print('said')\nx.append(next(g))\n{source}", limits=limits)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (status, code)
    assert outcome.stdout == "said\n"
    assert outcome.error.hint or code == "RUNTIME_ERROR"
    assert stage.value("[x, next(g)]") == [["kept"], 4]


def test_a_limit_a_program_catches_is_not_one(stage: Stage):
    code = "try: bytearray(200 << 20)\nexcept MemoryError: x = 'caught'\nx"
    assert stage.value(code) == "caught"
    code = "def f(): f()\ntry: f()\nexcept RecursionError: x = 'caught'\nx"
    assert stage.value(code) == "caught"


def test_inputs_and_results_must_fit_into_the_memory(stage: Stage):
    large = "x" * (70 << 20)
    stage.run("kept = 1")
    assert stage.code("len(large)", inputs={"large": large}) == "MEMORY_EXCEEDED"
    assert stage.code("add(1)", answer=lambda _call: ToolResult(large)) == "MEMORY_EXCEEDED"
    assert stage.code("await fetch(1)", answer=lambda _call: ToolResult(large)) == "MEMORY_EXCEEDED"
    assert stage.code("'y' * (30 << 20)") == "MEMORY_EXCEEDED"
    assert stage.value("kept") == 1


@pytest.mark.parametrize("depth", [50, 256, 500])
@pytest.mark.parametrize("call", ["f(n)", "await later(n)"])
def test_the_stack_is_as_deep_as_its_limit(stage: Stage, depth: int, call: str):
    code = "def f(n): return n and f(n - 1)\nasync def later(n): return f(n)\n"
    limits = {"max_stack_depth": depth}
    assert stage.value(f"n = {depth - 10}\n{code}{call}", limits=limits) == 0
    assert stage.code(f"n = {depth + 10}\n{code}{call}", limits=limits) == "STACK_OVERFLOW"


def test_the_calls_within_the_limit_are_made(stage: Stage):
    outcome = stage.run("for i in range(9): add(i)", limits={"max_external_calls": 8})
    assert len(outcome.external_calls) == outcome.metrics.external_calls_count == 8


def test_no_awaited_call_of_a_batch_beyond_the_limit_is_made(stage: Stage):
    calls_made: list[ProgramCall] = []
    code = "import asyncio\nawait asyncio.gather(*map(fetch, range(9)))"
    stage.try_run(code, answer=calls_made.append, limits={"max_external_calls": 8})
    assert calls_made == []


@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
def test_wall_time_ends_a_run_inside_a_tool(stage: Stage, call: str):
    """The tool continues in its thread; its late result is dropped."""
    finish = threading.Event()
    stage.run("x = 1")

    def slow(_call: ProgramCall) -> ToolResult:
        finish.wait(30)
        return ToolResult("late")

    outcome = stage.run(f"print('said')\nx = 2\n{call}", answer=slow, limits={"wall_ms": 400})
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("timeout", "TIMEOUT_WALL")
    assert outcome.stdout == "said\n"
    (record,) = outcome.external_calls
    assert (record.status, record.response_digest) == (CallStatus.TIMEOUT, None)
    assert stage.value("x") == 1
    finish.set()
    assert stage.value("[x, add(2)]") == [1, 2]


def test_many_tools_that_never_return_do_not_stop_other_runs(stage: Stage):
    finish = threading.Event()

    def stuck(_call: ProgramCall) -> ToolResult:
        finish.wait(30)
        return ToolResult(0)

    try:
        for _ in range(12):
            assert stage.code("add(1)", answer=stuck, limits={"wall_ms": 20}) == "TIMEOUT_WALL"
        assert stage.value("add(1)") == 1
    finally:
        finish.set()


def test_tool_time_counts_for_the_wall_and_not_for_the_cpu(stage: Stage):
    def busy(_call: ProgramCall) -> ToolResult:
        sum(range(3_000_000))
        return ToolResult(1)

    assert stage.value("add(1)", answer=busy, limits={"cpu_ms": 40, "wall_ms": 20_000}) == 1
    waiting = stage.wait("await fetch(1)", answer=later("fetch"), limits={"wall_ms": 1000})
    assert isinstance(waiting, SuspendedRun)
    slow = {1: ToolResult(2, duration_ms=1001)}
    outcome: Any = stage.resume(answers=slow)
    assert outcome.error.code == "TIMEOUT_WALL"


def test_time_while_a_run_waits_does_not_count(stage: Stage):
    stage.wait("await fetch(1)", answer=later("fetch"), limits={"wall_ms": 800})
    threading.Event().wait(0.9)
    assert stage.resume(5).result == 5


def test_timeout_ms_replaces_the_wall_time_of_the_run(stage: Stage):
    assert stage.code("while True: pass", timeout_ms=40) == "TIMEOUT_WALL"
    assert stage.value("1", timeout_ms=5_000) == 1


def test_limits_are_for_their_run_only(stage: Stage):
    assert stage.code("add(1)", limits={"max_external_calls": 0}) == "EXTERNAL_CALLS_EXCEEDED"
    assert stage.value("add(1)") == 1


def test_the_metrics_report_fuel_and_the_peak_of_memory(stage: Stage):
    small, large = (stage.run(f"sum(range({n}))").metrics for n in (10, 100_000))
    assert 0 < small.instructions < large.instructions
    peak = stage.run("len(bytearray(20 << 20))").metrics.memory_peak_bytes
    assert (19 << 20) < peak - small.memory_peak_bytes < (24 << 20)
