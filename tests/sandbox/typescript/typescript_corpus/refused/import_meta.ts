// ! UNSUPPORTED_FEATURE 3
let url: string
url = import.meta.url
