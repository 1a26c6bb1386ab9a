const p = new Intl.PluralRules("en", { type: "ordinal" }); console.log([1, 2, 3, 4, 11, 12, 21, 22, 113].map((n) => p.select(n)).join(" "))
console.log(new Intl.ListFormat("en").format(["a", "b", "c"]), new Intl.ListFormat("en", { type: "disjunction" }).format(["a", "b"]))
const r = new Intl.RelativeTimeFormat("en", { numeric: "auto" }); console.log(r.format(-1, "day"), r.format(2, "weeks"), r.format(1, "month"))
