// ! SYNTAX_ERROR 4
enum E { A }
let a = 1
a + = 2
