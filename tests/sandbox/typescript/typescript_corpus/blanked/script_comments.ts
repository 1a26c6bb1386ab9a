<!-- a comment, in scripts
const closed: string[] = []
{
  using x = { [Symbol.dispose]() { closed.push("x") } }
  closed.push("body")
}
closed
