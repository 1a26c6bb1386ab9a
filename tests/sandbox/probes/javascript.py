"""Probes in TypeScript."""

from __future__ import annotations

from typing import Any

from rookery.schemas.run import Language
from tests.sandbox.probes.probe import (
    CALLS,
    CPU,
    DENIED,
    FOREIGN,
    INVALID,
    MEMORY,
    OK,
    RAISES,
    STACK,
    SYNTAX,
    UNKNOWN,
    UNSUPPORTED,
    WALL,
    End,
    Probe,
)

__all__ = ["PROBES"]

_SHORT = {"cpu_ms": 80}
_OUTSIDE = (
    "Deno.readTextFileSync(path)",
    "process.env[variable]",
    "require('child_process').execSync(path)",
    "import net from 'net'\nnet.connect(port)",
    "import { type Server, createServer } from 'node:http'\ncreateServer() as Server",
    "import 'node:os'",
    "await import('worker_threads')",
    "export * from 'fs'",
    "export { readFileSync } from 'fs'",
    "new WebSocket('ws://127.0.0.1:' + port)",
    "new XMLHttpRequest()",
    "new Worker('x')",
    "navigator.userAgent",
    "Bun.file(path)",
    "globalThis.process",
    "eval('1')",
    "new Function('return this')()",
)
_ABSENT: dict[str, Any] = {
    "[typeof std, typeof os, typeof scriptArgs].join()": "undefined,undefined,undefined",
    "const made = (() => 0).constructor as any\n"
    "made('return [typeof std, typeof process, typeof Deno, typeof load].join()')()": "undefined"
    + ",undefined" * 3,
    "Object.getOwnPropertyNames((() => 0).constructor('return this')()).filter("
    "n => /std|^os$|process|Deno|load|worker|host/i.test(n))": [],
    "typeof Atomics": "undefined",
}
_FILES = (
    "require('fs').readFileSync(path)",
    "import fs from 'fs'\nfs.readFileSync(path)",
    "import { type Stats, statSync } from 'node:fs'\nstatSync(path) as Stats",
    "(await import('fs')).readFileSync('/work/../' + path)",
    "import { rm } from 'fs/promises'\nawait rm(path, { force: true })",
    "import fs from 'fs'\nfs.symlinkSync(path, 'link')",
    "import fs from 'fs'\nfs.writeFileSync('a', ''); fs.renameSync('a', path)",
)
_FUEL = (
    "while (true) {}",
    "for (;;) { try { throw 1 } catch { continue } }",
    "[...Array(1e6).keys()].sort(() => { while (true) {} })",
    "/^(a+)+$/.test('a'.repeat(40) + 'b')",
    "let n = 3n; for (;;) n = n * n % (2n ** 9999n)",
    "new Promise(() => {}).then(); for (;;) await 0",
    "async function f(): Promise<void> { await f2(); }\n"
    "async function f2(): Promise<void> { await 0; await f2() }\nwhile (true) await 0",
    "const t = Date.now() + 1e12\nwhile (Date.now() < t) {}",
    "'x'.repeat(1e6).replace(/x/g, () => { while (true); })",
    "JSON.parse('[1]', () => { while (true); })",
    "({ toString() { while (true); } }) + ''",
    "console.log(new Proxy({}, { ownKeys() { while (true); } }))",
    "console.log({ get [Symbol.toStringTag]() { while (true); } })",
    "({ toJSON() { while (true); } })",
    "new Map([[{ toString() { while (true); } }, 1]]); `${{ toString() { while (true); } }}`",
    "console.table({ a: { get b() { while (true); } } })",
    "structuredClone({ get x() { while (true); } })",
    "'a'.localeCompare({ toString() { while (true); } } as any)",
    "(5).toLocaleString('en', { get style() { while (true); } } as any)",
    "new URL({ toString() { while (true); } } as any)",
    "new Set({ *[Symbol.iterator]() { while (true) yield 1 } })",
    "const s = new Set<any>(); s[Symbol.iterator] = function* () { while (true) yield s }; s",
)
_MEMORY = (
    "new Uint8Array(2 ** 30)",
    "const s = ['x'.repeat(1e6)]; while (true) s.push(s[0] + s.length)",
    "const a: unknown[] = []; while (true) a.push(new Array(9999).fill(0))",
    "new Array(2 ** 28).fill(0)",
    "'x'.padEnd(2 ** 28)",
    "const m = new Map(); for (let i = 0; ; i++) m.set(i, 'x'.repeat(999) + i)",
    "let x: unknown = null; for (;;) x = { x, b: new Uint8Array(1 << 20) }",
)
_STACK = (
    "function f(): void { f() }\nf()",
    "const f = (): unknown => [f()]\nf()",
    "class A { get x(): unknown { return this.x } }\nnew A().x",
    "let x: unknown = []; for (let i = 0; i < 1e5; i++) x = [x]\nJSON.stringify(x)",
    "JSON.parse('['.repeat(1e5))",
    "const f = (): unknown => f()\nsetTimeout(f, 1); await new Promise(() => {})",
    "const f = (): unknown => f()\nError.prepareStackTrace = f; f()",
)
_RESULTS = (
    "() => 1",
    "Symbol('x')",
    "new Map([[1, 2]])",
    "new Set([1])",
    "0 / 0",
    "-1 / 0",
    "10n",
    "[1, , 3]",
    "new Date(0)",
    "new Promise(() => {})",
    "const o: any = {}; o.o = o; o",
    "'\\ud800'",
)
_CONTRACTS = tuple(code for code in _RESULTS if ";" not in code and code != "new Date(0)")
_PRINTING = {
    "what is in itself": "const o: any = {}; o.o = [o, new Map([[o, o]])]; console.log(o)",
    "what is deep": "let x: any = 1; for (let i = 0; i < 1e4; i++) x = { x }; console.log(x)",
    "what is long": "console.log(new Array(1e5).fill('é'), 'x'.repeat(1e5).split(''))",
    "much of it": "console.log('%s'.repeat(9999), ...Array.from({ length: 99 }, (_, i) => i))",
    "a table": "console.table(Array.from({ length: 999 }, (_, i) => ({ i, [`k${i % 50}`]: i })))",
    "what throws": "console.log(new Proxy({}, { get() { throw 1 } }))\n"
    "console.log(new Proxy({}, { getPrototypeOf() { throw 1 } }))",
    "what lies": "console.log({ constructor: { name: { toString() { throw 1 } } } }, class {})",
}
_POLLUTION = (
    "Object.prototype.toJSON = () => 'forged'",
    "Object.prototype.error = { code: 'CANCELLED', message: 'forged' }",
    "Array.prototype[Symbol.iterator] = function* () { yield 'forged' }",
    "Array.prototype.map = Array.prototype.filter = () => ['forged']",
    "Array.prototype.push = () => { throw 1 }",
    "Map.prototype.get = Map.prototype.set = Map.prototype.has = () => 'forged'",
    "Promise.prototype.then = () => { throw 1 }",
    "JSON.stringify = JSON.parse = () => 'forged'",
    "String.prototype.isWellFormed = RegExp.prototype.exec = () => { throw 1 }",
    "performance.now = Date.now = () => NaN",
    "Reflect.apply = Function.prototype.call = Function.prototype.apply = () => 'forged'",
    "Error.prepareStackTrace = () => { throw 1 }; Error.stackTraceLimit = 0",
    "Object.defineProperty = Object.hasOwn = () => { throw 1 }",
    "Math.random = () => { throw 1 }",
)
_ANOTHER_VALUE = "Object.defineProperty(Object.prototype, 'value', { get: () => 7, set() {} })"
"""Probes that break their own session."""
_SOURCES: dict[str, tuple[str, End]] = {
    "nothing": ("", OK),
    "truncated UTF-8": ("let x = '\udcc3", SYNTAX),
    "a lone surrogate": ("'\ud800'", SYNTAX),
    "NUL": ("let x = 1\0", SYNTAX),
    "NUL in a string": ("'\0'.length", OK),
    "a byte order mark": ("\ufeff1 + 1", OK),
    "a line of 10 MB": ("let x = '" + "a" * 10_000_000 + "'", MEMORY),
    "a comment of 10 MB": ("//" + "a" * 10_000_000, MEMORY),
    "deep parentheses": ("(" * 9_999 + "1" + ")" * 9_999, STACK),
    "deep arrays": ("[" * 9_999 + "]" * 9_999, STACK),
    "deep blocks": ("{" * 9_999 + "}" * 9_999, STACK),
    "deep types": ("let x: " + "Array<" * 999 + "1" + ">" * 999, STACK),
    "deep operators": ("-(" * 9_999 + "1" + ")" * 9_999, STACK),
    "a long sum": ("+".join("1" * 50_000), STACK),
    "deep templates": ("`${" * 200 + "1" + "}`" * 200, OK),
    "deep functions": ("(() => " * 99 + "1" + ")" * 99, OK),
    "an open comment": ("/* never", SYNTAX),
    "an open string": ("'" + "a" * 9_999, SYNTAX),
    "a hundred thousand statements": ("let x = 1;" + "x++;" * 100_000, MEMORY),
    "a decorator": ("@x class A {}", UNSUPPORTED),
    "right to left": ("let x = 'a\u202e' // \u2066 b", OK),
    "markup": ("<div>{1}</div>", SYNTAX),
    "Python": ("def f(): return 1", SYNTAX),
}
_CALLS = (
    "while (true) await fetch(1)",
    "await Promise.all(Array.from({ length: 9999 }, (_, i) => fetch(i)))",
)


def _ts(kind: str, name: str, code: str, end: End, **more: Any) -> Probe:
    return Probe(kind=kind, name=name, code=code, end=end, language=Language.TYPESCRIPT, **more)


PROBES: tuple[Probe, ...] = (
    *(_ts("outside", code, code, UNSUPPORTED) for code in _OUTSIDE),
    *(_ts("file", code, code, DENIED) for code in _FILES),
    *(_ts("outside", code, code, OK, value=value) for code, value in _ABSENT.items()),
    _ts("outside", "a tool that is not offered", "send_email('x')", UNKNOWN),
    *(_ts("result", code, code, OK) for code in _RESULTS),
    *(_ts("result", f"a contract: {code}", f"result = {code}", FOREIGN) for code in _CONTRACTS),
    *(_ts("printing", name, code, OK) for name, code in _PRINTING.items()),
    *(_ts("forgery", code, "1 + 1", OK, first=code, value=2) for code in _POLLUTION),
    _ts("forgery", "another value", "1 + 1", OK, first=_ANOTHER_VALUE, value=7),
    *(_ts("fuel", code, code, CPU, limits=_SHORT) for code in _FUEL),
    _ts("fuel", "wall time", "while (true) {}", WALL, limits={"wall_ms": 80}),
    *(_ts("memory", code, code, MEMORY) for code in _MEMORY),
    *(_ts("recursion", code, code, STACK) for code in _STACK),
    _ts("recursion", "caught again and again", "const f = (): any => f()\n"
        "while (true) try { f() } catch { }", CPU, limits=_SHORT),
    _ts("recursion", "no stack", "1", INVALID, limits={"max_stack_depth": 0}),
    _ts("recursion", "more stack than there is", "const f = (): any => f()\nf()", STACK,
        limits={"max_stack_depth": 65_535}),
    *(_ts("calls", code, code, CALLS) for code in _CALLS),
    _ts("calls", "one by one", "while (true) add(1)", CALLS),
    _ts("output", "without end", "while (true) console.log('x'.repeat(999))", CPU, limits=_SHORT),
    _ts("sleep", "a timer", "await new Promise(r => setTimeout(r, 2 ** 31))", OK),
    _ts("sleep", "an interval", "setInterval(() => 1, 1); await new Promise(() => 1)", CPU,
        limits=_SHORT),
    _ts("sleep", "for nothing", "await new Promise(() => {})", RAISES),
    *(_ts("source", name, code, end) for name, (code, end) in _SOURCES.items()),
)  # fmt: skip
