console.log("%s is %d years, %i, %f, %j and %%", "Bob", 42.5, 42.9, "3.5x", { a: 1 });
console.log("%s", { a: { b: 1 } }, "more", 5); console.log("100%", 7); console.log("%s"); console.log("%x", 1)
console.log("%cred", "color: red", [1]); console.log("%O %s", { a: [1, { b: 2 }] }, Symbol("x"), 5n, -0, null)
class P { x = 1 } class T { toString() { return "mine" } } console.log("%s %s %s", new P(), new T(), [1, [2]])
