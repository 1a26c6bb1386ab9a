console.log(new Map([["a", { b: 1 }], [{ k: 1 }, [2]]]), new Set(["x", new Set([1])]), new Map(), new Set())
console.log(new Map(Array.from({ length: 9 }, (_, i) => ["key" + i, { value: i }])), [new Map([[1, 2]])])
console.log([, 1, , , 2], new Array(3), Object.entries({ a: 1, b: 2 }), new Uint8Array([1, 2]), new ArrayBuffer(2))
