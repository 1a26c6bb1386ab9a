const people = [
  { id: 1, name: "Ada Lovelace", born: 1815, tags: ["maths", "poetry"], address: { city: "London" } },
  { id: 2, name: "Alan Turing", born: 1912, tags: [], address: { city: "Wilmslow", geo: { lat: 53 } } },
];
console.table(people); console.table(people, ["name"]); console.table([[1, 2], [3, 4]]); console.table(["a", "b"])
console.table({ x: { a: 1 }, y: { a: 2, b: "z" } }); console.table(new Map([["k", { v: 1 }]])); console.table(new Set([1])); console.table(5)
