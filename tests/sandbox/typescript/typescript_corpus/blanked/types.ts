#!/usr/bin/env -S made of types
interface Shape<T = unknown> extends Named, Partial<Sized> {
  (call: number): string
  new (made: string): Shape
  readonly kind: "square" | 'circle'
  [key: string]: any
  area?(this: Shape, scale: number): number
  get size(): number
}
interface Named { name: string }
interface Sized { size: number }
type Maybe<T> = T | null | undefined
type Both = Named & Sized
type Key = keyof Named
type Of = typeof values
type Item = Shape["kind"]
type Fn = (a: number, ...rest: string[]) => asserts a is 1
type Guard = (a: unknown) => a is string
type Made = abstract new (...args: any[]) => object
type Row = readonly [first: number, second?: string, ...more: boolean[]]
type Loose = [number?, ...string[]]
type Unwrapped<T> = T extends Promise<infer U extends string> ? U : never
type Path = `/${string}/${number}`
type Changed = { -readonly [K in keyof Both as `x${K & string}`]-?: Both[K] }
type Added = { +readonly [K in Key]+?: unique symbol }
type Asked = { [K in Key]?: (string)[] }
type Far = NS.Inner.Type<1>
type Self = { me(): this }
type Import = typeof globalValues.inner
type Signs = -1 | true | false | null | void
declare const globalValues: { inner: number }
declare let anything: any, other: unknown
declare function outside(a: number): void
declare class Elsewhere { static x: number; method(): void }
declare module "somewhere" { export const y: number }
declare namespace NS { namespace Inner { type Type<T> = T } }
declare global { interface Window { z: 1 } }
declare enum Colours { Red }
const values: number[] = [1, 2] as const satisfies readonly number[];
const wide: Map<string, Array<{ é: "é𠀀" }>> = new Map<string, any>([["k", [{ é: "é𠀀" }]]]);
[values, wide.get("k")!]
