// = [1, { "a": 2 }, "instantiated", 3, 5, { "b": 6 }, 7, [4]]
const o: any = { a: { b: 1 } }
const wrap = (x: any) => <any>{ a: x }
const generic = <T>(x: T): T => x
const made = generic<string>
const later = async (x: any) => <number>x
const bare = x => <any>{ b: x }
const start = () => (<{ c: number }>{ c: 7 }).c;
const seen: unknown[] = [(<any>o).a.b, wrap(2), made("instantiated"), <number>(3 as any)]
seen.push(await later(5), bare(6), start(), <number[]>[4])
seen
