"""The results of TypeScript runs: values, and errors with a code and an exact span."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.schemas.run import ResultKind, RunStatus, Severity
from tests.sandbox.session_fixture import Stage


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("", None),
        ("const x: number = 5", None),
        ("let x = 5\nx * 2", 10),
        ("result = 'kept'\n7", "kept"),
        ("const result: string = 'kept'\n7", "kept"),
        ("result = null\n7", None),
        ("for (let i = 0; i < 3; i++) { i }", None),
        ("5; const later = 6", 5),
        ("5\nfunction f() {}\nclass A {}\nenum E { A }\nlet x: number; var y = 2", 5),
        ("5\nexport function f() {}\nexport type { T } from 'x'\nexport { f }", 5),
        ("5\nnamespace N { export const a = 1 }", 5),
        ("5\nif (true) { 6 }", None),
        ("export default { a: 1 }\nfunction f() {}", {"a": 1}),
        ("const a = [1]\nexport default a", [1]),
        ("export = 7", 7),
        ("export const x = 5", None),
        ("x\nexport const x = 5", None),
        ("7 // the last word", 7),
        ("7; interface Last { a: 1 }; type T = 2", 7),
        ("7\ninterface Last { a: 1 }", 7),
        ("function f() { result = 3 }\nf()", 3),
        ("({a: [1, 2.5, true, null, 'é'], b: undefined})", {"a": [1, 2.5, True, None, "é"]}),
        ("undefined", None),
        ("'use strict'", "use strict"),
        ("await new Promise<string>(r => setTimeout(r, 3600_000, 'slept'))", "slept"),
        ("const f = async (): Promise<number> => 4\nawait f()", 4),
        ("const g = async () => 4; result = await g()", 4),
        ("let s = 0; for await (const v of [1, Promise.resolve(2)]) s += v; s", 3),
        ("const [a, { b = 2, ...c }]: any = [1, { d: 4 }]; [a, b, c]", [1, 2, {"d": 4}]),
        ("label: for (;;) { break label }", None),
        ("2 ** 53", 2**53),
        ("[this === undefined, (function () { return this })() === undefined]", [False, True]),
    ],
)
def test_the_result_is_result_or_else_the_last_expression(ts: Stage, code: str, value: Any):
    assert ts.value(code) == value


def test_a_result_of_an_earlier_run_can_be_read_but_never_leaks(ts: Stage):
    assert ts.value("result = 1") == 1
    assert ts.value("const x = 2") is None
    assert ts.value("result") == 1
    assert ts.value("result += 1") == 2
    assert ts.value("if (false) result = 9") is None
    assert ts.value("let result = 5") == 5
    assert ts.value("[result]", inputs={"result": 6}) == [6]


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("let x = 1", "let x = 2; x", 2),
        ("const x: number = 1", "const x: string = 'a'; x", "a"),
        ("const x = 1", "let x; x", None),
        ("class A { v = 1 }", "class A { v = 2 }\nnew A().v", 2),
        ("class A<T> { v?: T }", "abstract class A { v = 2 }\nnew (A as any)().v", 2),
        ("function f() { return 1 }", "const f = () => 2; f()", 2),
        ("const f = () => 1", "function f() { return 2 }\nf()", 2),
        ("var x = 1", "class x { static v = 2 }; x.v", 2),
        ("enum E { A = 1 }", "enum E { B = 2 }\nObject.keys(E)", ["2", "B"]),
        ("namespace N { export const a = 1 }", "namespace N { export const b = 2 }\nN", {"b": 2}),
        ("export enum E { A = 1 }", "export enum E { B = 2 }\nObject.keys(E)", ["2", "B"]),
        ("export namespace N { export const a = 1 }", "N.a", 1),
        ("export const x = 1, f = () => x", "export const x = 2; [f(), x]", [2, 2]),
        ("export default class A { v = 1 }", "export class A { v = 2 }\nnew A().v", 2),
        ("const { a, b: [c] } = { a: 1, b: [2] }", "const [a, c] = [3, 4]; a + c", 7),
        ("let n = 1; const get = () => n", "let n = 5; get()", 5),
        ("let n = 1; const more = () => ++n", "more(); n", 2),
        ("count = 41", "count + 1", 42),
        ("for (kept of [1, 2]) {}; [p, q] = [3, 4]; r ??= 5", "[kept, p, q, r]", [2, 3, 4, 5]),
    ],
)
def test_names_outlive_their_run_and_can_be_declared_again(
    ts: Stage, first: str, second: str, value: Any
):
    ts.run(first)
    assert ts.value(second) == value


def test_a_name_that_was_never_assigned_does_not_exist(ts: Stage):
    ts.run("if (false) ghost = 1")
    assert ts.code("ghost") == "UNKNOWN_TOOL"
    assert ts.value("absent += 1; absent") == "NaN"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("new Set([1, 'a'])", [1, "a"]),
        ("new Map<any, any>([['a', 1], [2, { b: new Set([3]) }]])", {"a": 1, "2": {"b": [3]}}),
        ("new Map<any, any>([[{ a: 1 }, 2]])", [[{"a": 1}, 2]]),
        ("new Map<any, any>([[1, 'number'], ['1', 'text']])", [[1, "number"], ["1", "text"]]),
        ("new Date(0)", "1970-01-01T00:00:00.000Z"),
        ("[10n, 2n ** 70n]", [10, "1180591620717411303424"]),
        ("[1, undefined, , 2]", [1, None, None, 2]),
        ("({ a: undefined, b: [undefined] })", {"b": [None]}),
        ("[new Uint8Array([1, 255]), new Float64Array([0.5]), new BigInt64Array([7n])]", None),
        ("new Uint8Array([1, 2]).buffer", [1, 2]),
        ("class Point { x = 1; #y = 2; get z() { return 3 } }\nnew Point()", {"x": 1}),
        ("class Money { toJSON() { return { cents: 5n } } }\n[new Money()]", [{"cents": 5}]),
        ("new URL('http://a/b?c')", "http://a/b?c"),
        ("new Map([['a', 1]]).keys()", ["a"]),
        (
            "Object.assign(Object.create(null), { a: new Date(5) })",
            {"a": "1970-01-01T00:00:00.005Z"},
        ),
        ("new Number(3)", 3),
    ],
)
def test_a_value_with_an_evident_form_in_json_is_converted(ts: Stage, code: str, value: Any):
    outcome = ts.run(code)
    assert outcome.error is None
    assert outcome.result == (value or [[1, 255], [0.5], [7]])
    assert outcome.result_kind is ResultKind.CONVERTED
    assert outcome.result_cut is msgspec.UNSET


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("0 / 0", "NaN"),
        ("({ a: 1 / 0, b: 1 })", {"a": "Infinity", "b": 1}),
        ("console.log", "[Function (anonymous)]"),
        ("[1, { a: [2, function f() {}] }]", [1, {"a": [2, "[Function: f]"]}]),
        ("Symbol('s')", "Symbol(s)"),
        ("new RangeError('no')", "RangeError: no"),
        ("/a+/g", "/a+/g"),
        ("'\\ud800'", "\\ud800"),
        ("const a: any[] = [1]\na.push(a)\na", [1, "[Circular]"]),
        ("new Date(NaN)", "Invalid Date"),
        ("({ get a() { throw new Error('x') } })", "{ a: [Getter] }"),
        ("new Promise(() => {})", "Promise { <pending> }"),
        ("[Promise.resolve(1)]", ["Promise { <pending> }"]),
        ("(function* () { yield 1 })()", "Object [Generator] {}"),
    ],
)
def test_a_value_without_an_evident_form_is_its_text(ts: Stage, code: str, value: Any):
    outcome = ts.run(code)
    assert outcome.error is None
    assert (outcome.result, outcome.result_kind) == (value, ResultKind.REPR)


def test_a_plain_value_is_what_it_is_and_none_has_no_kind(ts: Stage):
    plain = ts.run("({ a: [1, 'é', null] })")
    assert (plain.result, plain.result_kind) == ({"a": [1, "é", None]}, ResultKind.JSON)
    for code in ("undefined", "null", "if (true) 1", "let x = 1", "throw 1"):
        assert ts.run(code).result_kind is msgspec.UNSET


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("async function main(): Promise<number> { return (await fetch(2)) + 1 }\nmain()", 5),
        ("Promise.all([1, fetch(1)])", [1, 2]),
        ("new Promise<Set<number>>(done => setTimeout(() => done(new Set([1])), 50))", [1]),
        ("result = 1\nPromise.resolve(2)", 1),
    ],
)
def test_a_promise_has_the_value_that_it_resolves_to(ts: Stage, code: str, value: Any):
    assert ts.value(code) == value


def test_a_promise_that_fails_fails_the_run(ts: Stage):
    error = ts.run("async function main() { throw new RangeError('no') }\nmain()").error
    assert error is not None
    assert error.message == "RangeError: no"


@pytest.mark.parametrize(
    ("code", "length"),
    [
        (
            "let deep: any = new Set(); for (let i = 0; i < 200; i++) deep = new Set([deep]); deep",
            1,
        ),
        ("new Set(Array.from({ length: 150_000 }, (_, i) => i))", 100_000),
        ("new Map([['text', 'x'.repeat(2_000_000)]])", 1),
    ],
)
def test_a_converted_value_that_is_deep_or_huge_is_cut(ts: Stage, code: str, length: int):
    outcome = ts.run(code, limits={"memory_mb": 200, "cpu_ms": 20_000, "wall_ms": 20_000})
    assert outcome.error is None
    assert outcome.result_cut is True
    assert len(outcome.result) == length


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("new Set([1])", "type Set"),
        ("new Map()", "type Map"),
        ("new Uint8Array(2)", "type Uint8Array"),
        ("Promise.resolve(1)", "type Promise"),
        ("new (class Point { x = 1 })", "type Point"),
        ("console.log", "type function"),
        ("10n", "type bigint"),
        ("0 / 0", "number NaN"),
        ("({ a: 1 / 0 })", "number Infinity at .a"),
        ("[1, { a: [2, () => 1] }]", "type function at [1].a[1]"),
        ("({ 'not plain': [undefined] })", 'type undefined at ["not plain"][0]'),
        ("'\\ud800'", "lone surrogates"),
        ("new Date(NaN)", "type Date"),
        ("(() => { const a: any[] = []; a.push(a, new Date(0)); return a })()", "contains itself"),
    ],
)
def test_what_is_assigned_to_result_is_a_contract(ts: Stage, value: str, named: str):
    outcome = ts.run(f"result = {value}")
    assert outcome.error is not None
    assert named in outcome.error.message
    assert outcome.status is RunStatus.VALIDATION_ERROR
    assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"
    assert outcome.error.hint is not None
    assert "calls" not in outcome.error.hint


def test_a_contract_converts_dates_and_mentions_the_calls_that_were_made(ts: Stage):
    outcome = ts.run("const when = new Date(0); result = { when, all: [when] }; when.getTime()")
    text = "1970-01-01T00:00:00.000Z"
    assert (outcome.result, outcome.result_kind) == (
        {"when": text, "all": [text]},
        ResultKind.CONVERTED,
    )
    for call in ("add(1)", "await fetch(1)"):
        error = ts.run(f"{call}; result = new Set()").error
        assert error is not None
        assert error.hint is not None
        assert "the calls of this run have been made" in error.hint


def test_a_last_expression_that_is_not_json_does_not_matter_beside_a_result(ts: Stage):
    assert ts.value("result = 1\nnew Set()") == 1


def test_inputs_are_data(ts: Stage):
    inputs = {"text": "`; process.exit() //\0\u2028${1}", "nested": {"b": 1, "a": [None, 1e300]}}
    assert ts.value("[text, Object.keys(nested), nested]", inputs=inputs) == [
        inputs["text"],
        ["b", "a"],
        inputs["nested"],
    ]
    assert ts.value("text", inputs={}) == inputs["text"]
    assert ts.value("let text = 1; text", inputs={}) == 1
    assert ts.value("text", inputs={"text": 2}) == 2


@pytest.mark.parametrize(
    ("source", "code", "status", "span"),
    [
        ("let = = 1", "SYNTAX_ERROR", "validation_error", (1, 7, 1, 8)),
        ("const é = 1; return 5", "SYNTAX_ERROR", "validation_error", (1, 14, 1, 22)),
        ("a\0b", "SYNTAX_ERROR", "validation_error", (1, 2, 1, 3)),
        ("let a = 1\nlet { é: a } = b", "SYNTAX_ERROR", "validation_error", (2, 10, 2, 11)),
        ("1\n'éé' + null.x", "RUNTIME_ERROR", "runtime_error", (2, 8, 2, 12)),
        (
            "function f(é: {\n  a: 1 }) {\n  return 'é' + é.a.b.c\n}\n\nf({})",
            "RUNTIME_ERROR",
            "runtime_error",
            (3, 16, 3, 17),
        ),
        ("nobody_knows(1)", "UNKNOWN_TOOL", "validation_error", (1, 1, 1, 13)),
        ("throw new RangeError('é')", "RUNTIME_ERROR", "runtime_error", (1, 11, 1, 21)),
        ("let x: Map<'é', 1> = absent", "UNKNOWN_TOOL", "validation_error", (1, 22, 1, 28)),
        ("class A { m() { absent } }; new A().m()", "UNKNOWN_TOOL", "validation_error", (1, 17)),
        ("let a; class B {} a.b", "RUNTIME_ERROR", "runtime_error", (1, 19)),
        ("null as any\n('x' as any)(1)", "RUNTIME_ERROR", "runtime_error", (2,)),
        ("export const é = 1\nexport default absent", "UNKNOWN_TOOL", None, (2, 16, 2, 22)),
        ("export const [é] = absent", "UNKNOWN_TOOL", None, (1, 20, 1, 26)),
        ("\r\n\r\n  absent", "UNKNOWN_TOOL", "validation_error", (3, 3, 3, 9)),
        ("await (async () => { await 0; absent })()", "UNKNOWN_TOOL", "validation_error", (1, 31)),
        ("setTimeout(() => absent, 1)\nawait new Promise(() => {})", "UNKNOWN_TOOL", None, (1, 18)),
        ("throw 'not an error'", "RUNTIME_ERROR", "runtime_error", None),
        ("await new Promise(() => {})", "RUNTIME_ERROR", "runtime_error", None),
    ],
)
def test_an_error_has_a_code_a_status_and_an_exact_span(
    ts: Stage, source: str, code: str, status: str | None, span: tuple[int, ...] | None
):
    outcome = ts.run(source)
    assert outcome.error is not None
    assert outcome.error.code == code
    assert status in (outcome.status, None)
    found = outcome.error.span and msgspec.structs.astuple(outcome.error.span)
    assert (found and span and found[: len(span)]) == span, outcome.error


@pytest.mark.parametrize(
    ("source", "span"),
    [
        ("enum E {\n  A\n}\n\n\nconst x: E = absent", (6, 14, 6, 20)),
        (
            "class A {\n  constructor(private é = 1) {}\n\n  m() {\n    absent } }\nnew A().m()",
            (5, 5),
        ),
        ("let a = 1\n\nnamespace N { export const é = 1 }\n// é\nN.é; eval('1')", (5, 6, 5, 10)),
        ("enum E { A }\n\n let a = 1; const a = 2", (3, 19, 3, 20)),
    ],
)
def test_places_are_found_again_in_what_was_transformed(
    ts: Stage, source: str, span: tuple[int, ...]
):
    outcome = ts.run(source)
    assert outcome.error is not None
    assert outcome.error.span is not None
    assert msgspec.structs.astuple(outcome.error.span)[: len(span)] == span, outcome.error


def test_a_span_points_into_the_present_source_and_no_other(ts: Stage):
    ts.run("\n\n\nfunction early() { return null.x }")
    outcome = ts.run("let x = 1; early()")
    assert outcome.error is not None
    assert outcome.error.span is not None
    assert (outcome.error.span.line, outcome.error.span.column) == (1, 12)


def test_an_error_whose_text_throws_is_still_described(ts: Stage):
    code = "class E extends Error { get message(): string { throw this } get stack() { throw 1 } }"
    assert ts.code(f"{code}\nthrow new E()") == "RUNTIME_ERROR"
    assert ts.code("throw { toString() { throw 1 } }") == "RUNTIME_ERROR"
    assert ts.code("throw null") == "RUNTIME_ERROR"
    assert ts.value("1") == 1


def test_a_programs_own_error_keeps_what_it_did(ts: Stage):
    assert ts.code("const x = 1\nnull.foo") == "RUNTIME_ERROR"
    assert ts.value("x") == 1


def test_awaiting_a_future_that_cannot_end_is_an_error(ts: Stage):
    assert ts.code("await new Promise(() => {})") == "RUNTIME_ERROR"
    assert ts.value("1") == 1


def test_output_is_captured_stream_by_stream_and_stays_with_its_run(ts: Stage):
    code = (
        "console.log('a', 1, { b: [null, 'c'] }); console.info('é\\ud800'); console.debug(2n)\n"
        "console.warn('w'); console.error(new TypeError('e')); console.assert(1, 'no')"
    )
    outcome = ts.run(code)
    assert outcome.stdout == "a 1 { b: [ null, 'c' ] }\né\\ud800\n2n\n"
    assert outcome.stderr == "w\nTypeError: e\n"
    assert ts.run("console.log('b')").stdout == "b\n"
    assert ts.run("1").stdout == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("undefined, null, -0, NaN, true", "undefined null -0 NaN true"),
        ("[], {}, [[]]", "[] {} [ [] ]"),
        ("new Map([['a', { b: 1 }]]), new Set([1])", "Map(1) { 'a' => { b: 1 } } Set(1) { 1 }"),
        ("new Date(0), /a+/g", "1970-01-01T00:00:00.000Z /a+/g"),
        ("class P { x = 1 }, new (class P { x = 1 })", "[class P] P { x: 1 }"),
        ("function f() {}, () => 1", "[Function: f] [Function (anonymous)]"),
        ("new Uint8Array(2), Symbol('s')", "Uint8Array(2) [ 0, 0 ] Symbol(s)"),
        ("{ 'a b': 1, get c() { return 2 } }", "{ 'a b': 1, c: [Getter] }"),
        ("Object.assign(Object.create(null), { a: 1 })", "[Object: null prototype] { a: 1 }"),
        ("new Proxy({}, { ownKeys() { throw 1 } })", "[Object]"),
        ("", ""),
    ],
)
def test_console_shows_values_as_people_know_them(ts: Stage, value: str, shown: str):
    assert ts.run(f"console.log({value})").stdout == f"{shown}\n"


def test_console_shows_no_end_of_anything(ts: Stage):
    code = "const a: any = { deep: [[[[[[1]]]]]] }; a.self = a; console.log(a, Array(500).fill(7))"
    outcome = ts.run(code)
    assert outcome.status == "ok"
    assert "[Circular *1]" in outcome.stdout
    assert "... 400 more items" in outcome.stdout


def test_output_before_an_error_is_returned(ts: Stage):
    assert ts.run("console.log('so far')\nnull.x").stdout == "so far\n"


@pytest.mark.parametrize(("limit", "kept"), [(0, ""), (5, "éé"), (6, "ééé"), (7, "ééé\n")])
def test_cut_output_ends_with_a_whole_character_and_a_warning(ts: Stage, limit: int, kept: str):
    code = "console.log('ééé')\nconsole.log('é')"
    outcome = ts.run(code, limits={"max_stdout_bytes": limit})
    assert (outcome.status, outcome.stdout) == ("ok", kept)
    (warning,) = outcome.diagnostics
    assert (warning.severity, warning.code) == (Severity.WARNING, "STDOUT_EXCEEDED")
    assert ts.run("console.log('ééé')").diagnostics == ()


def test_time_and_chance_are_the_sessions_own(ts: Stage):
    code = "const t = Date.now(); await new Promise(r => setTimeout(r, 5000)); Date.now() - t"
    assert ts.value(code) == 5000
    assert ts.value("new Set(Array.from({ length: 99 }, Math.random)).size") == 99
    assert ts.value("[0, 1, 2].every(() => { const x = Math.random(); return 0 <= x && x < 1 })")
    assert ts.value("const p = performance.now(); performance.now() > p") is True


def test_timers_fire_in_their_order_and_can_be_cleared(ts: Stage):
    code = """
const seen: string[] = []
const tick = () => { seen.push('tick'); if (seen.length > 4) clearInterval(ticks) }
const ticks = setInterval(tick, 10)
setTimeout(() => seen.push('late'), 25)
setTimeout((a: string) => { seen.push(a); queueMicrotask(() => seen.push('micro')) }, 5, 'early')
clearTimeout(setTimeout(() => seen.push('never'), 1))
await new Promise(r => setTimeout(r, 100))
seen"""
    assert ts.value(code) == ["early", "micro", "tick", "tick", "late", "tick"]


def test_timers_end_with_their_run(ts: Stage):
    ts.run("let late = 0; setTimeout(() => late++, 10)")
    assert ts.value("await new Promise(r => setTimeout(r, 50)); late") == 0
