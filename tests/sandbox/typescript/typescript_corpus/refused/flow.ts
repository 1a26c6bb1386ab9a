// ! RUNTIME_ERROR 5
// Not TypeScript, though the grammar knows it: it runs as what is left without it.
const maybe: ?string = null;
type Existing = *
maybe.length
