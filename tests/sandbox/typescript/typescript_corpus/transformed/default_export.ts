// = { "kept": 7 }
enum Kept { Seven = 7 }
export default { kept: Kept.Seven }
export enum Later { A }
export namespace Space { export const a = 1 }
type Kept2 = Kept
export { Kept, type Kept2 }
