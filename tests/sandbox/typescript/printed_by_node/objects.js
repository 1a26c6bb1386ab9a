console.log({ "a b": 1, "c-d": 2, $x: 3, _y: 4, 5: 6 }, { u: undefined, n: null, f() {}, g: () => 1, h: class {} })
class A { x = 1; #y = 2; get z() { return 3 } } class B extends A { w = [1] } class L extends Array {}
console.log(new A(), new B(), [new B()], A, B, L.from([1]), Object.create(null), { get a() { return 1 }, set b(v) {} })
console.log({ [Symbol("s")]: 1 }, async () => 1, function* g() {}, Math.max, new Date(0), [new Date(0)], /a/g, [/b/])
console.log(new Number(3), new String("abc"), [new Boolean(false)], { a: { b: { c: { d: 1 } } } }, { a: { b: { c: {} } } })
