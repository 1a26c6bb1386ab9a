const log: (string | number)[] = []
var hoisted: number = 1, second
function overload(a: string): string
function overload(a: number): number
function overload(a: any): any { return a }
async function later<T>(value: T): Promise<T> { return await value }
function fail(message: string): never { throw new Error(message) }
outer: for (let i: number = 0; i < 5; i++) {
  for (const key in { a: 1, b: 2 } as Record<string, number>) {
    if (i === 1) continue outer
    else if (i === 3) break outer
    else log.push(`${i}${key}`)
  }
}
for (const item of [1, 2] as const) log.push(item)
for (;;) { break }
let count: number = 0
while (count < 2) count++
do { count-- } while (count > 0);
switch (count as number) {
  case 0: { log.push("zero"); break }
  case 1:
    log.push("one")
  default:
    log.push("default")
}
try {
  fail("caught")
} catch (error: unknown) {
  log.push((error as Error).message)
} finally {
  log.push("finally")
}
try { fail("quiet") } catch { log.push("no binding") }
if (count) log.push("never"); else log.push("else")
debugger
;;
{
  type Inner = number
  interface Local { x: Inner }
  const scoped: Local = { x: 1 }
  log.push(scoped.x)
}
const f = () => log as any
interface Between { y: 1 }
type Also = Between
[1].forEach(x => log.push(x))
log.push(overload("o"), overload(2), await later<string>("l"), hoisted)
const returned = ((): number => {
  return 5 as number
})()
log.push(returned)
/* the end */ log
