// ! UNSUPPORTED_FEATURE 3
namespace A { export class Base {} }
namespace A { export class More extends Base {} }
