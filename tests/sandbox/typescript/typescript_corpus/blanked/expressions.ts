const seen: unknown[] = []
const o: any = { a: { b: [1, 2, 3] }, "q r": null, get g(): number { return 1 }, ["c" + 1]: undefined, async *m() {} }
const { a, ["q r"]: q = 4, ...others }: { a: any; [k: string]: any } = o
const [first, , third = 3 as number, ...tail]: number[] = (a as { b: number[] }).b
seen.push(first, third, tail, q, Object.keys(others))
seen.push(o?.a?.["b"]?.[0]!, o.nothing?.(), (o as any).a.b.length, (o as any).g)
const generic = <T,>(x: T): T => x
const arrow = async <T extends unknown[]>(x: T): Promise<{
  value: T
}> => ({ value: x })
const noted = (
  x: number, // a comment, with )
  y?: string,
): {
  x: number
} => ({ x })
seen.push(generic<number>(1), (await arrow([1])).value, noted(2))
seen.push(new Array<number>(3).fill(0))
let n = 1, m: number | undefined
n += 2; n ||= 5; n <<= 1; n++; --n; n = -n; n = (+(n as number)) ** 2
m = n > 3 ? n : (n, 0)
seen.push(n, m, typeof m, void 0 === undefined, !n, ~n, n >>> 1, n in [1], o instanceof Object)
const text = `a${n}b${`inner ${m}`}` + 'esc\n\u{61}' + "x"
seen.push(text, /a(?<name>[b-d])+\/é/gu.test("é"), /x/.flags, null, true, false)
function* walk<T>(items: T[]): Generator<T, void, unknown> { const got: any = yield items[0]; yield* items.slice(1) }
const gen = function* (): Generator<number> { yield 1 }
const fn = function named(this: { v: number }, ...rest: number[]): number { return this.v + rest.length }
seen.push([...walk([1, 2])], [...gen()], fn.call({ v: 1 }, 2, 3), fn.apply({ v: 2 }, [...[1, 2]]))
const bare = x => x, tag = (s: TemplateStringsArray, ...v: unknown[]) => s.raw.join("|") + v
seen.push(bare(1), tag`p${1}q`)
const casts = [1 as unknown as string, [3]!, ({ v: 4 } satisfies object)]
let after = o.a as any
(seen as unknown[]).push(casts, after === a)
let last = o!.a!.b![1]! as number
;[n, m] = [m!, n]; ({ a: o.a, ["q r"]: o.z = 6, n = 8 } = { a: 1 } as any)
seen.push(last, n, m, o.a, o.z)
JSON.stringify(seen)
