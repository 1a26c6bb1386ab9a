// ! UNSUPPORTED_FEATURE 3
var I = 1, interface_ = 2
interface
I
{}
