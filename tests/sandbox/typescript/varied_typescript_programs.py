"""Fifty more in TypeScript. ``fib`` comes from the run before."""

from __future__ import annotations

__all__ = ["TYPESCRIPT_PROGRAMS"]

TYPESCRIPT_PROGRAMS: dict[str, str] = {
    "arithmetic": "let s: number = 0; for (let i = 0; i < 999; i++) s += i * i; s",
    "long integers": "String(3n ** 999n).slice(0, 40)",
    "division": "[7 / 3, -7 % 3, Math.round(2.5), (2.675).toFixed(2)]",
    "floats": "[0.1 + 0.2, Math.sin(1e6), Math.exp(0.5), 1e308 * 1.1 > 1e308, 5e-324]",
    "a float sum": "let s = 0; for (let n = 1; n < 999; n++) s += 1 / n; s",
    "more of mathematics": "[Math.pow(2, 0.5), Math.atan2(1, 2), Math.hypot(3, 4), Math.cbrt(27)]",
    "numbers as text": "[1e21, 1e-7, 123456789.125, -0].map(String)",
    "bits": "[5 & 6, 5 | 6, 5 ^ 6, ~5, 1 << 31, -1 >>> 28, Math.imul(3, 1 << 30), Math.clz32(9)]",
    "strings": "['é'.normalize('NFD').length, 'ß'.toUpperCase(), 'x'.padStart(9, '*')]",
    "templates": "const t = (s: TemplateStringsArray, ...v: number[]) => s.raw.join('|') + v\n"
    "t`a${1}\\n${2}`",
    "regular expressions": "'deterministic'.replace(/(\\w)(\\w)/g, '$2$1')",
    "named groups": "[...'a1b2'.matchAll(/(?<l>[a-z])(?<n>\\d)/g)].map(m => ({ ...m.groups }))",
    "sets": "[...new Set(['alpha', 'beta', 'gamma', 'alpha'])]",
    "set algebra": "[...new Set([1, 2, 3]).symmetricDifference(new Set([3, 4]))]",
    "maps": "[...new Map<any, number>([['b', 1], ['a', 2], [NaN, 3]]).entries()].map(String)",
    "the order of keys": "Object.keys({ z: 1, 2: 1, a: 1, 1: 1, [Symbol.iterator]: 1 })",
    "deleted keys": "const o: any = { a: 1, b: 2 }; delete o.a; o.a = 3; JSON.stringify(o)",
    "for in": "const r: string[] = []; for (const k in { b: 1, a: 2, 0: 3 }) r.push(k); r",
    "grouping": "Object.groupBy(['one', 'two', 'three'], w => String(w.length))",
    "sorting": "['b', 'A', 'a', 'B'].sort((x, y) => x.toLowerCase() < y.toLowerCase() ? -1 : 1)",
    "sorting numbers": "[10, 9, 1].sort().concat([10, 9, 1].toSorted((a, b) => a - b))",
    "flattening": "[[1, [2]], [3]].flat(2).flatMap(n => [n, n * 2])",
    "destructuring": "const { a, ...rest }: any = { a: 1, b: 2, c: 3 }; [a, rest]",
    "spread": "Math.max(...[1, 2], ...new Set([3]))",
    "closures": "const made = [1, 2, 3].map(n => () => n * n); made.map(f => f())",
    "recursion": "fib(17)",
    "classes": "class A { #x = 1; static n = 0; get x() { A.n++; return this.#x } }\n"
    "const a = new A(); [a.x, a.x, A.n, 'x' in a]",
    "inheritance": "class A { who() { return 'A' } }\n"
    "class B extends A { who() { return super.who() + 'B' } }\nnew B().who()",
    "enums": "enum E { A = 1, B = A << 2, C = 'c' as any }\n[E.A, E.B, E[4], E.C]",
    "namespaces": "namespace N { export const x = 1; export function f() { return x + 1 } }\nN.f()",
    "parameter properties": "class P { constructor(readonly x: number, private y = 2) {} }\n"
    "JSON.stringify(new P(1))",
    "generators": "function* g(): Generator<number> { const x: any = yield 1; yield x * 2 }\n"
    "const i = g(); [i.next().value, i.next(21).value, i.return(5).value]",
    "iterators": "const o = { *[Symbol.iterator]() { yield* [1, 2]; yield 3 } }; [...o]",
    "proxies": "const seen: string[] = []\n"
    "const p: any = new Proxy({}, { get: (_, k) => (seen.push(String(k)), k) }); p.a + p.b; seen",
    "getters": "const o = { n: 0, get next() { return ++this.n } }; [o.next, o.next]",
    "errors": "try { null!.x } catch (e: any) { result = [e.name, e.message] }",
    "causes": "const e = new Error('a', { cause: new TypeError('b') }); (e.cause as Error).message",
    "stacks": "const f = () => new Error('here').stack!.split('\\n').length; f()",
    "typed arrays": "[...new Float32Array([0.1, 1 / 3])].concat([...new Uint8Array([256, -1])])",
    "views": "const v = new DataView(new ArrayBuffer(8)); v.setFloat64(0, Math.PI); v.getInt32(4)",
    "JSON": "JSON.stringify({ b: [1, undefined], a: new Date(0), n: 0 / 0 }, null, 1)",
    "JSON back": "JSON.parse('{\"a\": [1, {\"b\": 2}]}', (k, v) => k === 'b' ? v + 1 : v)",
    "dates": "[new Date(0).toISOString(), new Date(2024, 1, 30).getMonth(), Date.UTC(2024, 0)]",
    "the clock": "[Date.now(), performance.now(), new Date().getTime(), String(new Date())]",
    "chance": "[Math.random(), Math.random(), [3, 1, 2].sort(() => Math.random() - 0.5)]",
    "timers": "const r: string[] = []\n"
    "setTimeout(() => r.push('b'), 5); setTimeout(() => r.push('a'), 1)\n"
    "await new Promise(done => setTimeout(done, 9)); [r, Date.now()]",
    "the order of jobs": "const r: number[] = []; Promise.resolve().then(() => r.push(2))\n"
    "queueMicrotask(() => r.push(3)); r.push(1); await 0; await 0; r",
    "output": "console.log('é', { a: [1, new Map([[1, 2]])] }); console.error(new Set([1])); 1",
    "calls": "[add(1), write('x', 'y'), await fetch(2)]",
    "calls together": "await Promise.all([3, 1, 2].map(n => fetch(n)))",
    "calls that wait": "[await approve('a'), Math.random(), Date.now()]",
    "weak references": "const k = {}, w = new WeakMap([[k, 1]]);\n"
    "[w.get(k), new WeakRef(k).deref() === k]",
    "frames that ran out": "let d = 0; const f = (): void => { d++; f() }\n"
    "try { f() } catch { }\nd",
    "an uncaught error": "throw new RangeError('uncaught: ' + Math.random())",
}
