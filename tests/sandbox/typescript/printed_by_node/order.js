const words = "résumé Resume resume Résumé zoo Zoe a A b B á ä _x -x $5 #a 10 9 2 1 file10 file2 File1 co-op coop naïve ñ n o ø æ ß ss".split(" ")
console.log(words.toSorted((a, b) => a.localeCompare(b)).join(" "))
console.log(words.toSorted(new Intl.Collator("en", { numeric: true }).compare).join(" "))
console.log("a".localeCompare("A", undefined, { sensitivity: "base" }), "a".localeCompare("á", "en", { sensitivity: "base" }), "a".localeCompare("b"), "".localeCompare("a"))
