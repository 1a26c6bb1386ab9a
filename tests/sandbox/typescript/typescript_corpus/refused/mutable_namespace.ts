// ! UNSUPPORTED_FEATURE 2
namespace Counter { export let count = 0; count += 1 }
Counter.count
