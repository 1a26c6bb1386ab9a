const o = { name: "o", list: [] }; o.self = o; o.list.push(o, { up: o.list }); console.log(o); console.log([o])
