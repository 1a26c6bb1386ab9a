// ! UNSUPPORTED_FEATURE 3
const noted = (value: any, _context: any) => value
@noted
class Decorated { @noted method() {} }
