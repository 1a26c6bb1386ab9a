console.log(["a", "b"], "it's", ["it's", 'say "x"', `a'b"c`, "a\nb", "\t\x01é😀"])
console.log(Array.from({ length: 27 }, (_, i) => "word" + i), ["日本語", "中文", "a", "b", "c", "d", "e"])
console.log({ text: "a long line of text\n".repeat(6) }, ["x".repeat(100)])
