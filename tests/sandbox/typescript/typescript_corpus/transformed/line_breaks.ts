// = [1, 2, "t", 3]
const a = (): any => {
  return <
    any
  >1
}
const b = async <
  T
>(x: T) => x
const tag = <T,>(s: TemplateStringsArray): string => s[0]
let last: any = 3
const also = last as any
[9].length
const seen = [a(), await b(2), tag<string>`t`, also]
seen
