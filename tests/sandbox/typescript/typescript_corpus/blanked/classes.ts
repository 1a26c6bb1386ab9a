abstract class Animal<T extends string = string> implements Comparable, Iterable<T> {
  static readonly count: number = 3
  static #secret = 4
  private name?: string
  protected legs!: number
  public readonly ["computed" as string]: boolean = true
  declare ghost: string
  declare readonly other: number
  abstract sound: string
  get: number
  set?: number
  x = 1 as number
  private [`y`] = 2
  readonly z = 3
  static { this.#secret += 1 }
  [index: string]: any
  abstract speak(volume: number): string;
  constructor();
  constructor(a: string);
  constructor(a?: any) { this.name = a ?? "none" }
  method(): void
  method<U>(this: Animal, b?: U): void {}
  optional?(): string { return "optional" }
  protected static async *many<U>(n: U): AsyncGenerator<U> { yield n }
  private get secret(): number { return Animal.#secret }
  private set secret(value: number) { Animal.#secret = value }
  public override toString(this: this): string { return `${this.name}:${this.secret}` }
  *[Symbol.iterator](): Iterator<T> { yield* ["a", "b"] as T[] }
}
interface Comparable { compare?(other: unknown): number }
class Dog extends (Animal as any)<string> implements Comparable {
  sound = "woof"
  private readonly tags: Set<string> = new Set<string>(["t"])
  constructor(public_ = "Rex") { super(public_); new.target; super.toString() }
  speak(): string { return this.sound + super.method.name }
  has(tag: string): tag is "t" { return this.tags.has(tag) }
  check(value: unknown): asserts value is string { if (typeof value !== "string") throw value }
  sure(value: unknown): asserts value {}
}
const Anonymous = class<T> { value!: T; constructor(readonly_: T) { this.value = readonly_ } }
const dog = new Dog()
const all: unknown[] = []
for await (const n of (Animal as any).many<number>(7)) all.push(n)
all.push(String(dog), [...dog], dog.speak(), dog.has("t"), dog.check("x"), Animal.count)
all.push(Object.keys(dog), dog.computed, dog.x, dog.y, dog.z, dog.optional!())
all.push(new Anonymous<number>(5).value)
JSON.stringify(all)
