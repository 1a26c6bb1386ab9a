console.log([1, 2, 3], [1.5, -0, NaN], Array.from({ length: 30 }, (_, i) => i * i))
console.log(Array.from({ length: 120 }, (_, i) => i), [1n, 2n], [-1, -22, 333, 4, 5, 6, 7, 8])
