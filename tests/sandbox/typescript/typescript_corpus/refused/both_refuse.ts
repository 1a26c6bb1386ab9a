// ! SYNTAX_ERROR 3
let fine: number = 1
let x: = 2
