"""Every limit has its own status and code in TypeScript too, and costs the session only the run."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rookery.actors.sandbox import ProgramCall, ToolResult
from rookery.schemas.run import CallStatus
from tests.sandbox.session_fixture import Stage, later

LIMITS: dict[str, tuple[str, dict[str, int], str, str]] = {
    "cpu": ("while (true);", {"cpu_ms": 100}, "timeout", "TIMEOUT_CPU"),
    "cpu in C": ("'a'.repeat(30) .match(/(a+)+b/)", {"cpu_ms": 100}, "timeout", "TIMEOUT_CPU"),
    "jobs without end": (
        "const again = (): any => Promise.resolve().then(again)\nawait again()",
        {"cpu_ms": 100},
        "timeout",
        "TIMEOUT_CPU",
    ),
    "timers without end": (
        "setInterval(() => 1, 0)\nawait new Promise(() => {})",
        {"cpu_ms": 100},
        "timeout",
        "TIMEOUT_CPU",
    ),
    "wall": ("while (true);", {"wall_ms": 200}, "timeout", "TIMEOUT_WALL"),
    "one allocation": (
        "new Uint8Array(200 << 20)",
        {},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "memory bit by bit": (
        "const rest = []; while (true) rest.push(String(rest.length).repeat(50_000))",
        {"memory_mb": 24},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "memory for a copy of what is printed": (
        "console.log('x'.repeat(50_000_000))",
        {"memory_mb": 128, "cpu_ms": 20_000, "wall_ms": 20_000},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "memory for the error itself": (
        "'a'.repeat(1e6).replace(/a/g, 'b'.repeat(1000))",
        {"cpu_ms": 20_000, "wall_ms": 20_000},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "memory for an expression": (
        "new RegExp('a'.repeat(15e6))",
        {"memory_mb": 24, "cpu_ms": 20_000, "wall_ms": 20_000},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "many small things": (
        "const rest = []; while (true) rest.push({ a: rest.length })",
        {"memory_mb": 16, "cpu_ms": 20_000, "wall_ms": 20_000},
        "resource_exhausted",
        "MEMORY_EXCEEDED",
    ),
    "stack": (
        "function f(n: number): number { return f(n + 1) }\nf(0)",
        {},
        "resource_exhausted",
        "STACK_OVERFLOW",
    ),
    "stack in C": (
        "const f = (): any => [1].map(f)\nf()",
        {},
        "resource_exhausted",
        "STACK_OVERFLOW",
    ),
    "calls": (
        "for (let i = 0; i < 9; i++) add(i)",
        {"max_external_calls": 8},
        "resource_exhausted",
        "EXTERNAL_CALLS_EXCEEDED",
    ),
    "awaited calls": (
        "await Promise.all(Array.from({ length: 9 }, (_, i) => fetch(i)))",
        {"max_external_calls": 8},
        "resource_exhausted",
        "EXTERNAL_CALLS_EXCEEDED",
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_ends_the_run_and_undoes_its_effects(ts: Stage, name: str):
    source, limits, status, code = LIMITS[name]
    ts.run("const x = ['kept']; function* count() { for (let i = 0; ; i++) yield i * i }")
    ts.run("const g = count(); g.next(); g.next()")
    outcome = ts.run(f"console.log('said')\nx.push('lost'); g.next()\n{source}", limits=limits)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == (status, code)
    assert outcome.stdout == "said\n"
    assert outcome.error.hint
    assert ts.value("[x, g.next().value]") == [["kept"], 4]


def test_a_limit_a_program_catches_is_not_one(ts: Stage):
    code = "let x; try { new Uint8Array(200 << 20) } catch (e) { x = e.message }; x"
    assert ts.value(code) == "out of memory"


def test_a_program_that_throws_null_has_memory(ts: Stage):
    outcome = ts.run("throw null")
    assert (outcome.error.code, outcome.error.message) == ("RUNTIME_ERROR", "thrown: null")


def test_inputs_and_results_must_fit_into_the_memory(ts: Stage):
    large = "x" * (70 << 20)

    def code(source: str, **request: Any) -> str:
        """A busy machine copies 70 MiB for seconds."""
        return ts.code(source, limits={"wall_ms": 60_000}, **request)

    ts.run("const kept = 1")
    assert code("large.length", inputs={"large": large}) == "MEMORY_EXCEEDED"
    assert code("add(1)", answer=lambda _call: ToolResult(large)) == "MEMORY_EXCEEDED"
    assert code("await fetch(1)", answer=lambda _call: ToolResult(large)) == "MEMORY_EXCEEDED"
    assert code("'y'.repeat(30 << 20)") == "MEMORY_EXCEEDED"
    assert ts.value("kept") == 1


def test_the_calls_within_the_limit_are_made(ts: Stage):
    outcome = ts.run("for (let i = 0; i < 9; i++) add(i)", limits={"max_external_calls": 8})
    assert len(outcome.external_calls) == outcome.metrics.external_calls_count == 8


@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
def test_wall_time_ends_a_run_inside_a_tool(ts: Stage, call: str):
    finish = threading.Event()
    ts.run("let x = 1")

    def slow(_call: ProgramCall) -> ToolResult:
        finish.wait(30)
        return ToolResult("late")

    outcome = ts.run(f"console.log('said')\nx = 2\n{call}", answer=slow, limits={"wall_ms": 400})
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("timeout", "TIMEOUT_WALL")
    assert outcome.stdout == "said\n"
    (record,) = outcome.external_calls
    assert (record.status, record.response_digest) == (CallStatus.TIMEOUT, None)
    assert ts.value("x") == 1
    finish.set()
    assert ts.value("[x, add(2)]") == [1, 2]


def test_advanced_time_counts_as_wall_time(ts: Stage):
    code = "await Promise.race([approve(1), new Promise(r => setTimeout(r, 90_000))])"
    waiting = ts.wait(code, answer=later("approve"))
    assert waiting.timer_ms == 90_000
    outcome: Any = ts.sandbox.resume(ts.name, advance_ms=90_000)
    assert outcome.error.code == "TIMEOUT_WALL"


def test_the_metrics_report_fuel_and_the_peak_of_memory(ts: Stage):
    loop = "let n = 0; for (let i = 0; i < {}; i++) n += i"
    small, large = (ts.run(loop.replace("{}", str(n))).metrics for n in (10, 100_000))
    assert 0 < small.instructions < large.instructions
    peak = ts.run("new Uint8Array(20 << 20).length").metrics.memory_peak_bytes
    assert (20 << 20) <= peak - small.memory_peak_bytes < (24 << 20)


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("(" * 400 + "1" + ")" * 400, "ok"),
        ("(" * 50_000 + "1" + ")" * 50_000, "resource_exhausted"),
        ("- " * 100_000 + "1", "resource_exhausted"),
        ("[" * 100_000, "validation_error"),
        ("const x = '" + "a" * 1_000_000 + "'", "ok"),
        ("const x = '" + "a" * 10_000_000 + "'", "resource_exhausted"),
        ("let x: " + "A<" * 200 + "B" + ">" * 200, "ok"),
        ("let x: " + "A<" * 20_000 + "B" + ">" * 20_000, "resource_exhausted"),
        ("+".join("1" * 50_000), "resource_exhausted"),
        ("a;" * 20_000, "ok"),
        ("a;" * 200_000, "resource_exhausted"),
        ("x as any;" * 20_000, "ok"),
        ("return;" * 20_000, "validation_error"),
        ("let a = 1;" * 20_000, "validation_error"),
        ("enum A { B }\n" + "a < b > (c);" * 5_000, "ok"),
        ("enum E { A }\n" * 5_000, "validation_error"),
        ("var a; export default a;" * 5_000, "ok"),
        ("import a from 'b';" * 5_000 + "a", "validation_error"),
        ("x = a < b; x = b > (a);" * 5_000 + "var a, b", "ok"),
        ("type T =" + "| { a: 1 }" * 2_000 + "\n1", "ok"),
        ("@" * 10_000, "validation_error"),
        ("`${" * 5_000, "validation_error"),
        ("\ud800", "validation_error"),
        ("//\u2028let x: number", "ok"),
    ],
)
def test_hostile_sources_are_contained(ts: Stage, source: str, status: str):
    limits = {"cpu_ms": 20_000, "wall_ms": 20_000}
    assert ts.run(source, validate_only=True, limits=limits).status == status
    assert ts.run("1", validate_only=True).status == "ok"


def test_a_source_is_translated_within_the_time_of_its_run(ts: Stage):
    source = "x as any;" * 15_000
    assert ts.code(source, limits={"cpu_ms": 20}) == "TIMEOUT_CPU"
    assert ts.value("1") == 1
