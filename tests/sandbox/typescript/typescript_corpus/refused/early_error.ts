// ! SYNTAX_ERROR 3
function f(): void {
  let twice = 1; let twice = 2
}
