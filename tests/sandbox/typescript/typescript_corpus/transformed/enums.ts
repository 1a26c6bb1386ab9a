// = ["Green", 0, 5, "s", 2, 10, ["1", "One"], "B", true]
enum Colour { Red, Green = 5, Text = "s", Length = "ab".length, Double = Green * 2 }
const enum Small { One = 1 }
enum Merged { A }
enum Merged { B = 1 }
const seen: unknown[] = [Colour[5], Colour.Red, Colour.Green, Colour.Text, Colour.Length, Colour.Double]
seen.push(Object.keys(Small), Merged[1], Merged.A === 0)
seen
