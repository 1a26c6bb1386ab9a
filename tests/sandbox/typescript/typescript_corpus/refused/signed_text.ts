// ! UNSUPPORTED_FEATURE 3
const one = 1
enum E { A = one, B = +"2" }
