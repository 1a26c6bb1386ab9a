// = [1, 2, "x", 4]
type Variance<in out T> = { (value: T): T }
type Imported = import("somewhere").Type<1>
class Indexed<out T> {
  static [key: string]: any
  abstractly?: T
}
abstract class Described {
  abstract get size(): number
  abstract set size(value)
  own(): number { return 2 }
}
class Described2 extends Described { size = 1 }
const seen: unknown[] = [new Described2().size, new Described2().own()];
Indexed["x"] = "x";
[...seen, Indexed.x, ((a: number): number => a + 1)(3)]
