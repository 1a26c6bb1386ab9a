"""``max_stack_depth`` counts the frames of a program, of any size and with any caller."""

from __future__ import annotations

import pytest
import wasmtime

from rookery.actors.sandbox import ProgramCall, Sandbox, ToolResult
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.typescript.engine import engine_bytes
from rookery.actors.sandbox.typescript.frame_counter import count_frames
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language, RunResult
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later

VARIABLES = "".join(f"let x{i} = n; " for i in range(60))
NESTED: dict[str, str] = {
    "function": "function f(n: number): number { return n && f(n - 1) }",
    "arrow": "const f = (n: number): number => n && f(n - 1)",
    "mutual": """
const f = (n: number): number => n && g(n - 1)
const g = (n: number): number => n && f(n - 1)""",
    "method": """
class A { f(n: number): number { return n && this.f(n - 1) } }
const f = (n: number) => new A().f(n)""",
    "constructor": """
class A { constructor(n: number) { if (n) new A(n - 1) } }
const f = (n: number) => (new A(n), 0)""",
    "getter": """
const a = { get up(): any { return m-- > 0 ? a.up : 0 } }
const f = (n: number) => a.up""",
    "many variables": f"const f = (n: number): number => {{ {VARIABLES} return n && f(n - 1) }}",
    "spread": "const f = (...a: number[]): number => a[0] && f(...[a[0] - 1, 2, 3])",
    "apply": "function f(n: number): number { return n && Reflect.apply(f, null, [n - 1]) }",
    "bind": "function f(n: number): number { return n && f.bind(null, n - 1)() }",
    "toString": """
const a = { toString: () => (m-- > 0 && `${a}`, "0") }
const f = (n: number) => Number(a)""",
    "async": """
const g = async (n: number): Promise<void> => { if (n) await g(n - 1) }
const f = async (n: number) => (await g(n), 0)""",
    "generator": """
function* g(n: number): any { if (n) yield* g(n - 1) }
const f = (n: number) => [...g(n)].length""",
    "map": "const f = (n: number): number => n && [n - 1].map(f)[0]",
    "sort": "const f: any = () => (m-- > 0 && [2, 1].sort(f), 0)",
    "toJSON": """
const a = { toJSON: (): any => (m-- > 0 && JSON.stringify(a), 0) }
const f = (n: number) => Number(JSON.stringify(a))""",
    "proxy": """
const p: any = new Proxy({}, { get: (): any => m-- > 0 ? p.up : 0 })
const f = (n: number) => p.up""",
    "replace": "const f: any = () => (m-- > 0 && 'a'.replace(/a/, f), 0)",
    "finally": "const f = (n: any): any => { try { return n && f(n - 1) } finally { n = 0 } }",
}
"""``f(n)``, where ``m`` is ``n``, nests about as many frames and is 0."""


def nested(kind: str, frames: int) -> str:
    return f"{{ let m = {frames}; {NESTED[kind]}\nresult = await f({frames}) }}"


@pytest.mark.parametrize("depth", [30, 256, 350])
@pytest.mark.parametrize("kind", NESTED)
def test_the_stack_is_as_deep_as_its_limit(ts: Stage, kind: str, depth: int):
    limits = {"max_stack_depth": depth}
    assert ts.value(nested(kind, depth - 5), limits=limits) == 0
    outcome = ts.run(nested(kind, depth + 5), limits=limits)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("resource_exhausted", "STACK_OVERFLOW")
    assert outcome.error.message == "RangeError: Maximum call stack size exceeded"
    assert "max_stack_depth" in (outcome.error.hint or "")


def test_both_languages_count_alike(ts: Stage, stage: Stage):
    """A plain function that returns its depth, called by the program."""
    deepest = (
        (ts, "let d = 0; const f = (): any => { d++; f() }\ntry { f() } catch { }\nd"),
        (
            stage,
            "d = 0\ndef f():\n  global d; d += 1; f()\ntry: f()\nexcept RecursionError: pass\nd",
        ),
    )
    for depth in (40, 256):
        reached = [s.value(code, limits={"max_stack_depth": depth}) for s, code in deepest]
        assert all(depth - 3 <= frames <= depth for frames in reached), reached


def test_what_a_program_catches_is_not_its_end(ts: Stage):
    ts.run("const kept = { n: 0 }; const f = (): any => { kept.n++; f() }")
    assert ts.value("try { f() } catch (e) { result = e instanceof RangeError }") is True
    assert ts.value("kept.n") == 255
    assert ts.value("f.call; [1, 2].map(n => n + add(n))") == [2, 4]
    assert ts.code("f()") == "STACK_OVERFLOW"
    assert ts.value("kept.n") == 255


def test_every_run_has_its_own_limit(ts: Stage):
    ts.run("const f = (n: number): number => n && f(n - 1)")
    for depth in (20, 300, 50, 256):
        limits = {"max_stack_depth": depth}
        assert ts.value(f"f({depth - 5})", limits=limits) == 0
        assert ts.code(f"f({depth + 5})", limits=limits) == "STACK_OVERFLOW"
        assert ts.value(f"f({depth - 5})", limits=limits) == 0


def test_jobs_and_timers_have_the_whole_stack_and_no_more(ts: Stage):
    nest = "const f = (n: number): number => n && f(n - 1)\n"
    job = nest + "await null\nresult = await Promise.resolve(0).then(() => f(frames))"
    timer = nest + "result = await new Promise(r => setTimeout(() => r(f(frames)), 5))"
    for code in (job, timer):
        limits = {"max_stack_depth": 60}
        fits, deeper = (code.replace("frames", str(n)) for n in (50, 65))
        assert ts.value(f"{{ {fits} }}", limits=limits) == 0
        assert ts.code(f"{{ {deeper} }}", limits=limits) == "STACK_OVERFLOW"


def test_what_the_sandbox_does_itself_does_not_count(ts: Stage):
    limits, deep = {"max_stack_depth": 2}, "[" * 100 + "1" + "]" * 100
    assert ts.value(f"const x: unknown = {deep}; x", limits=limits) is not None
    assert ts.value("y", inputs={"y": {"a": [1]}}, limits=limits) == {"a": [1]}
    assert (
        ts.value(f"await fetch({deep}) + add(2)", answer=_seven, limits={"max_stack_depth": 8})
        == 14
    )
    assert ts.code("const g = () => 1, h = () => g()\nh()", limits=limits) == "STACK_OVERFLOW"


@pytest.mark.parametrize("awaited", [True, False])
def test_a_run_that_slept_elsewhere_keeps_its_limit(
    ts: Stage, engine: wasmtime.Engine, javascript_guest: JavaScriptGuest, awaited: bool
):
    call, tool = ("await fetch(1)", "fetch") if awaited else ("write('a')", "write")
    for extra, code in ((-5, None), (5, "STACK_OVERFLOW")):
        nest = "const f = (n: number): any => n && f(n - 1)"
        source = f"{{ {nest}\n{call}; result = f({100 + extra}) }}"
        waiting = ts.wait(source, answer=later(tool), limits={"max_stack_depth": 100})
        taken = ts.sandbox.snapshot(ts.name)
        with Sandbox(engine, [javascript_guest], KEY, ready=1) as elsewhere:
            elsewhere.restore(taken.data, tools=TOOLS)
            woken = Stage(elsewhere, ts.name, create=False, language=Language.TYPESCRIPT)
            outcome = woken.resume(answers={waiting.calls[0].id: ToolResult(1)})
            assert isinstance(outcome, RunResult)
            assert (outcome.error and outcome.error.code) == code
            assert woken.value("const g = (n: number): any => n && g(n - 1); g(240)") == 0
        ts.resume(answers={waiting.calls[0].id: ToolResult(1)})


def test_beyond_the_interpreters_own_stack_no_limit_helps(ts: Stage):
    """Recursion of the engine's own functions: it cannot be caught and ends the run."""
    ts.run("const kept = 1")
    endless = "const f = (): any => f()\ntry { f() } catch { }"
    data = "let x: any = 1; for (let i = 0; i < 1e5; i++) x = [x]\nJSON.stringify(x)"
    for code in (endless, data):
        outcome = ts.run(f"{{ {code} }}", limits={"max_stack_depth": 65535})
        assert outcome.error is not None
        assert outcome.error.code == "STACK_OVERFLOW"
        assert "does not help" in (outcome.error.hint or "")
        assert ts.value("kept") == 1


def test_an_engine_of_another_shape_is_refused():
    engine = engine_bytes()
    with pytest.raises(Failed, match="not the one expected"):
        count_frames(engine.replace(b"\x60\x07\x7f\x7e\x7e\x7e", b"\x60\x07\x7e\x7e\x7e\x7e"))


def test_an_engine_that_does_not_count_is_refused(
    engine: wasmtime.Engine, cache: GuestCache, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rookery.actors.sandbox.typescript.engine._SIX_FRAMES", "1")
    with pytest.raises(Failed, match="does not count frames"):
        JavaScriptGuest(engine, cache).instance()


def _seven(_call: ProgramCall) -> ToolResult:
    return ToolResult(7)
