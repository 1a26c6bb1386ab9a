// Says why a value is not plain JSON. Evaluated when a session first needs it.
() => {
  const { getPrototypeOf, keys } = Object;
  const { isArray } = Array;
  const { stringify } = JSON;
  const NESTING_MAX = 128;
  const TOO_DEEP = `it is nested more than ${NESTING_MAX} deep, or contains itself`;
  const PLAIN_NAME = /^[A-Za-z_$][\w$]*$/;

  const kindOf = (value) => {
    if (value === null) return "null";
    if (typeof value !== "object") return typeof value;
    try {
      const made = getPrototypeOf(value)?.constructor?.name;
      return typeof made === "string" && made ? made.slice(0, 80) : "object";
    } catch {
      return "object";
    }
  };

  const scalar = (item) => {
    switch (typeof item) {
      case "boolean": return null;
      case "string": return item.isWellFormed() ? null : "text with lone surrogates";
      case "number": return Number.isFinite(item) ? null : `the number ${item}`;
      default: return item === null ? null : `a value of type ${kindOf(item)}`;
    }
  };
  const isPlainObject = (item) => {
    if (item === null || typeof item !== "object") return false;
    const made = getPrototypeOf(item);
    return made === null || made === Object.prototype;
  };
  // Why `value` is not plain JSON; null if it is. A property that is undefined counts as absent,
  // as in JSON.stringify.
  const problemOf = (value) => {
    const todo = [[value, "", 0]];
    while (todo.length) {
      const [item, path, depth] = todo.pop();
      let problem = null;
      if (depth > NESTING_MAX) return TOO_DEEP;
      if (isArray(item)) {
        for (let i = item.length - 1; i >= 0; i--) todo.push([item[i], `${path}[${i}]`, depth + 1]);
      } else if (isPlainObject(item)) {
        for (const key of keys(item).reverse()) {
          if (!key.isWellFormed()) problem = "a key that is text with lone surrogates";
          else if (item[key] !== undefined) todo.push([item[key], within(path, key), depth + 1]);
        }
      } else problem = scalar(item);
      if (problem) return path ? `${problem} at ${path.slice(0, 200)}` : problem;
    }
    return null;
  };
  const within = (path, key) => {
    const short = key.slice(0, 40);
    return PLAIN_NAME.test(key) ? `${path}.${short}` : `${path}[${stringify(short)}]`;
  };

  return { problemOf };
}
