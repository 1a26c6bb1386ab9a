console.log("a"); console.group("b"); console.log("c\nd", { e: 1 }); console.group(); console.info("f"); console.groupEnd()
console.log("g"); console.groupEnd(); console.groupEnd(); console.log("h"); console.count(); console.count("x"); console.count()
console.countReset(); console.count(); console.dir({ a: { b: { c: { d: 1 } } } }, { depth: 0 }); console.log(); console.dirxml([1])
