// Values in words: what console prints, and what keeps a value from being plain JSON.
() => {
  const { getPrototypeOf, keys, is } = Object;
  const { isArray } = Array;
  const { stringify } = JSON;
  const NESTING_MAX = 128, DEPTH_MAX = 4, ITEMS_MAX = 100;
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
  const isPlain = (item, depth) => {
    if (depth > NESTING_MAX) return false;
    if (isArray(item)) {
      for (let i = 0; i < item.length; i++) if (!isPlain(item[i], depth + 1)) return false;
      return true;
    }
    if (!isPlainObject(item)) return scalar(item) === null;
    for (const key of keys(item)) {
      if (!key.isWellFormed()) return false;
      const inner = item[key];
      if (inner !== undefined && !isPlain(inner, depth + 1)) return false;
    }
    return true;
  };
  // What keeps `value` from being plain JSON; null if nothing does. A property that is undefined
  // is one that is not there, as in JSON.stringify.
  const complaint = (value) => {
    try { if (isPlain(value, 0)) return null; } catch { /* No stack left for it, or a getter. */ }
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

  const inspect = (value, depth = 0, above = []) => {
    switch (typeof value) {
      case "string": return depth ? stringify(value) : value;
      case "bigint": return `${value}n`;
      case "symbol": return value.toString();
      case "function": return callable(value);
      case "object": break;
      default: return is(value, -0) ? "-0" : String(value);
    }
    if (value === null) return "null";
    if (above.includes(value)) return "[Circular]";
    if (value instanceof Error) return `${value.name}: ${value.message}`;
    if (value instanceof Date) return isNaN(value) ? "Invalid Date" : value.toISOString();
    if (value instanceof RegExp) return String(value);
    if (depth > DEPTH_MAX) return `[${kindOf(value)}]`;
    try {
      return structure(value, (inner) => inspect(inner, depth + 1, [...above, value]));
    } catch { // The program wrote a getter.
      return `[${kindOf(value)}]`;
    }
  };
  const callable = (value) => {
    const kind = /^class\b/.test(Function.prototype.toString.call(value)) ? "class" : "Function";
    return `[${kind} ${value.name || "(anonymous)"}]`;
  };
  const structure = (value, shown) => {
    const kind = kindOf(value);
    const first = (items) => Array.from(items).slice(0, ITEMS_MAX);
    if (isArray(value)) {
      return bracket("", "[]", value.slice(0, ITEMS_MAX).map(shown), value.length);
    }
    if (ArrayBuffer.isView(value) && !(value instanceof DataView)) {
      const items = Array.from(value.slice(0, ITEMS_MAX), shown);
      return bracket(`${kind}(${value.length}) `, "[]", items, value.length);
    }
    if (value instanceof Map) {
      const items = first(value).map(([key, item]) => `${shown(key)} => ${shown(item)}`);
      return bracket(`Map(${value.size}) `, "{}", items, value.size);
    }
    if (value instanceof Set) {
      return bracket(`Set(${value.size}) `, "{}", first(value).map(shown), value.size);
    }
    if (value instanceof Promise) return "Promise { ... }";
    const names = keys(value);
    const items = first(names).map((name) => {
      return `${PLAIN_NAME.test(name) ? name : stringify(name)}: ${shown(value[name])}`;
    });
    return bracket(kind.toLowerCase() === "object" ? "" : `${kind} `, "{}", items, names.length);
  };
  const bracket = (before, [open, close], items, count) => {
    if (count > items.length) items.push(`... ${count - items.length} more`);
    return before + (items.length ? `${open} ${items.join(", ")} ${close}` : open + close);
  };

  return { complaint, inspect };
}
