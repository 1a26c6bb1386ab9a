// = [1, 3, "inner", 1]
namespace Outer {
  export const a = 1
  const hidden: number = 2
  export function sum(): number { return a + hidden }
  export namespace Inner { export const name: string = "inner" }
  export interface Type { x: 1 }
}
module Legacy { export const b = 1 }
namespace OnlyTypes { export type T = number }
import name = Outer.Inner.name
const seen: unknown[] = [Outer.a, Outer.sum(), name, Legacy.b]
seen
