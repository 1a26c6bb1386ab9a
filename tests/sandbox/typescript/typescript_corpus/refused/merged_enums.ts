// ! UNSUPPORTED_FEATURE 3
enum E { A = 1 }
enum E { B = A + 1 }
