const people = [
  { id: 1, name: "Ada Lovelace", born: 1815, tags: ["maths", "poetry"], address: { city: "London" } },
  { id: 2, name: "Alan Turing", born: 1912, tags: [], address: { city: "Wilmslow", geo: { lat: 53 } } },
];
console.log(people); console.log(people[0]); console.log({ people })
