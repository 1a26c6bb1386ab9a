// = [3, "typed", 4, 5, "T", false, true, 6, [7], 1]
interface T { c: number } interface U {}
const f: any = (x: any): any => Array.isArray(x) ? x[0] : x
const x = 2, y = "typed"
const initial = { c: 4 }
var a = 1
const seen: unknown[] = [f<Array<Array<T>>>(x) + 1, f<typeof y>(y), f<T | U>(4), f<new () => T>(x) + 3]
seen.push(f<T | U>`T`, (x < 1 || x > (3)), x < 3 && (x) > (1), f<typeof initial, U>(6))
seen.push([f<<T>(x: T) => number>(7)])
const chosen = x ? (a) : number => a
seen.push(chosen)
seen
