const o = { d: new Date(5), m: new Map([[{ k: 1 }, new Set([1])]]), a: [1, , 3], r: /x/gi, b: new Uint8Array([1, 2]) }; o.self = o
const c = structuredClone(o); console.log(c, c !== o, c.self === c, c.d !== o.d); try { structuredClone(() => 1) } catch (e) { console.log(e.name) }
