"""Static checks of TypeScript, before a run and by ``validate``."""

from __future__ import annotations

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox, Tool
from rookery.schemas.run import Language, RunRequest, RunResult
from tests.sandbox.session_fixture import Stage

OBJECTS = "Deno process Bun XMLHttpRequest WebSocket Worker SharedWorker navigator globalThis"
BLOCKED = [
    "import x from 'y'; x",
    "import { type T, x } from 'y'; let t: T = x",
    "import { x as z } from 'y'; ({ z })",
    "import * as x from 'y'; x.z as any",
    "import 'y'",
    "import x = require('y'); x()",
    "import { x } from 'y'; export { x }",
    "import { x } from 'y'; enum E { A } x(E)",
    "export * from 'y'",
    "export * as x from 'y'",
    "export { x } from 'y'",
    "enum E { A } export = E",
    "const x = await import('y')",
    "const f = () => import(`y`)",
    "import.meta.url",
    *(f"{name}('x')" for name in ("eval", "Function", "require", "fetch")),
    "new Function('return 1')()",
    "class A { x = eval('1') }",
    "`${eval('1')}`",
    "enum E { A = eval('1') }",
    *(f"{name}.x" for name in OBJECTS.split()),
    *(f"{name}?.x()" for name in OBJECTS.split()),
    *(f"const x: any = {name}['x']" for name in OBJECTS.split()),
    *(f"new {name}('x')" for name in OBJECTS.split()),
    "@dec class A {}",
    "class A { accessor x = 1 }",
    "with (x) y",
]


def validated(sandbox: Sandbox, code: str, *tools: str) -> RunResult:
    request = RunRequest(code=code, language=Language.TYPESCRIPT)
    return sandbox.validate(request, tools=[Tool(name=name) for name in tools])


@pytest.mark.parametrize("source", BLOCKED)
def test_what_is_blocked_is_refused_before_anything_runs(ts_sandbox: Sandbox, source: str):
    outcome = validated(ts_sandbox, f"console.log('ran')\n{source}")
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("validation_error", "UNSUPPORTED_FEATURE")
    assert outcome.stdout == ""
    assert outcome.error.hint
    assert outcome.error.span is not None
    assert outcome.error.span.line == 2


def test_a_run_is_checked_in_the_same_way(ts: Stage):
    outcome = ts.run("console.log('ran')\nprocess.exit()")
    assert outcome.error is not None
    assert (outcome.error.code, outcome.stdout) == ("UNSUPPORTED_FEATURE", "")


@pytest.mark.parametrize(
    "source",
    [
        "'import x; process.exit(); eval(1)'",
        "// eval('1')\n/* Deno.exit() */ 1",
        "`process.env`",
        "const o = { process: { env: 1 }, eval() {}, fetch: 1 }; o.process.env; o.eval()",
        "function process(x: number) { return x }\nprocess(1)",
        "type T = typeof import('x')",
        "let x: Deno.Type, y: Worker",
        "class A { require() {} }\nnew A().require()",
        "/eval()/.test('x')",
        "import type x from 'y'; let z: x",
        "import { x } from 'y'; let z: x.A<typeof x>",
        "import * as x from 'y'; function f(x: number) { return x }",
        "import x, { type y } from 'z'",
        "import x = require('y')",
        "export type { x } from 'y'; export {}",
        "f<typeof import('x')>(1); function f(n: number) {}",
        "declare class A { @dec x: number }",
        "export default 1",
    ],
)
def test_what_only_looks_like_it_is_not(ts_sandbox: Sandbox, source: str):
    assert validated(ts_sandbox, source).status == "ok"


@pytest.mark.parametrize(
    ("source", "named", "span"),
    [
        ("const é = 'é'; eval(Deno.x)", "eval()", (1, 16, 1, 20)),
        ("let x: 'é𠀀' = process.env\nimport y from 'z'; y", "process", (1, 15, 1, 22)),
        ("import {\n  é\n} from 'y'; é(eval(1))", "modules", (1, 1, 3, 12)),
        ("await query_db('é')", "'query_db'", (1, 7, 1, 15)),
    ],
)
def test_the_first_violation_of_the_source_wins_with_its_exact_span(
    ts_sandbox: Sandbox, source: str, named: str, span: tuple[int, ...]
):
    error = validated(ts_sandbox, source).error
    assert error is not None
    assert named in error.message
    assert error.span is not None
    assert msgspec.structs.astuple(error.span) == span


@pytest.mark.parametrize(
    ("source", "code", "span"),
    [
        ("let é = 1; let x = = 2", "SYNTAX_ERROR", (1, 18, 1, 19)),
        ("if (1) {", "SYNTAX_ERROR", (1,)),
        ("let x = 'é\n", "SYNTAX_ERROR", (1,)),
        ("let a\nconst a = 1", "SYNTAX_ERROR", (2, 7, 2, 8)),
        ("class A {}\nfunction A() {}", "SYNTAX_ERROR", (2, 10, 2, 11)),
        ("const [a, { b }] = x, { c: b } = y", "SYNTAX_ERROR", (1, 28, 1, 29)),
        ("if (1) { return }", "SYNTAX_ERROR", (1, 10, 1, 16)),
        ("const é = 1; é += 1", "TYPE_ERROR", (1, 14, 1, 15)),
        ("const a = 1; [a] = [2]", "TYPE_ERROR", (1, 15, 1, 16)),
        ("const a = 1\nfor (a of []);", "TYPE_ERROR", (2, 6, 2, 7)),
        ("1\n  function f() { break }", "SYNTAX_ERROR", (2, 3, 2, 25)),
    ],
)
def test_what_is_no_program_is_refused_with_its_place(
    ts_sandbox: Sandbox, source: str, code: str, span: tuple[int, ...]
):
    outcome = validated(ts_sandbox, source)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("validation_error", code)
    assert outcome.error.span is not None
    assert msgspec.structs.astuple(outcome.error.span)[: len(span)] == span, outcome.error


@pytest.mark.parametrize(
    "source",
    [
        "const a = 1; function f(a: number) { a = 2 }",
        "const a = 1; { let a = 2; a = 3 }",
        "const a = { b: 1 }; a.b = 2; a['b']++",
        "var a = 1; var a = 2; function a() {}",
        "function a() {} function a() {}",
        "const f = () => { return 1 }; class A { m() { return 1 } static { f(() => { return }) } }",
        "const { a = b, [c]: d } = e; b = 1; c = 2",
    ],
)
def test_names_that_may_be_used_so_are(ts_sandbox: Sandbox, source: str):
    assert validated(ts_sandbox, source).status == "ok"


@pytest.mark.parametrize("name", ["fetch_url", "query_db", "send_email"])
def test_a_call_that_looks_like_a_tool_is_one_or_is_refused(ts_sandbox: Sandbox, name: str):
    refused = validated(ts_sandbox, f"{name}('x')")
    assert refused.error is not None
    assert (refused.status, refused.error.code) == ("validation_error", "UNKNOWN_TOOL")
    assert refused.error.hint
    assert validated(ts_sandbox, f"{name}('x')", name).status == "ok"


def test_what_the_host_offers_under_a_blocked_name_can_be_called(ts_sandbox: Sandbox):
    assert validated(ts_sandbox, "await fetch('x')").status == "validation_error"
    assert validated(ts_sandbox, "await fetch('x')", "fetch").status == "ok"


def test_validation_executes_nothing_and_stores_nothing(ts_sandbox: Sandbox):
    sessions = ts_sandbox.sessions()
    for _ in range(2):
        source = "console.log(1); function String() {} let Map = 1; undefined_ + await later"
        outcome = validated(ts_sandbox, source)
        assert (outcome.status, outcome.result, outcome.stdout) == ("ok", None, "")
        broken = validated(ts_sandbox, "function f() { break }").error
        assert broken is not None
        assert broken.message == "break must be inside loop or switch"
    assert ts_sandbox.sessions() == sessions


def test_validation_in_a_session_changes_nothing_in_it(ts: Stage):
    ts.run("let x = 1")
    before = ts.sandbox.snapshot(ts.name)
    assert ts.run("x = n; list_tools()", validate_only=True, inputs={"n": 2}).status == "ok"
    assert ts.code("x = 2; 1 +", validate_only=True) == "SYNTAX_ERROR"
    assert ts.sandbox.snapshot(ts.name) == before
    assert ts.value("[x, typeof n]") == [1, "undefined"]


@pytest.mark.parametrize(
    "source",
    [
        "[].constructor.constructor('return 1')()",
        "(0, eval)('1')",
        "Reflect.getPrototypeOf(async () => {}).constructor('return 1')()",
    ],
)
def test_what_the_checks_miss_stays_in_the_sandbox(ts: Stage, source: str):
    ts.run(source)
    reach = "(0, eval)(`[typeof Deno, typeof process, typeof Bun, typeof XMLHttpRequest]`)"
    assert ts.value(reach) == ["undefined"] * 4
    names = ts.value("(0, eval)('Object.getOwnPropertyNames(globalThis)')")
    assert not {"__host", "fs", "os", "std", "print", "load", "bjson"} & set(names)
