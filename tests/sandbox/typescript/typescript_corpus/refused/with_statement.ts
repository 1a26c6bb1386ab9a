// ! UNSUPPORTED_FEATURE 3
const scope = { a: 1 };
with (scope) { a }
