// ! UNSUPPORTED_FEATURE 3
const resource = { [Symbol.dispose]() {} }
using x = resource
