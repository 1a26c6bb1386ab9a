// = [1, 2, [3, 4], "K", { "e": 5 }, "A", "C2", 8]
import type { Remote } from "./types"
import { Shape, type Size } from "./shapes"
import Fallback, * as Everything from "./more"
import { } from "./nothing"
export type { Shape }
export type Local = Shape | Size | Remote | Fallback | Everything.One
export interface Point { x: number }
export const one = 1, two: number = 2
export let [three, four]: number[] = [3, 4]
export class K implements Point { x = 1; static who = "K" }
export abstract class A { static who = "A" }
export async function five(): Promise<object> { return { e: 5 } }
export function over(a: string): string
export function over(a: any) { return a }
export { one as uno, two, type Local as Other }
export type { Remote } from "./types"
export { type Size } from "./shapes"
export default class C2 {}
export declare const elsewhere: number
export as namespace Whole
const eight = 8
;[one, two, [three, four], K.who, await five(), A.who, C2.name, over(8 as any)]
