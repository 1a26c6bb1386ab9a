// Whether a value is plain JSON. A property that is undefined counts as absent, as in
// JSON.stringify.
() => {
  const { getPrototypeOf, keys } = Object;
  const { isArray } = Array;
  const NESTING_MAX = 128;

  const isScalar = (item) => {
    switch (typeof item) {
      case "boolean": return true;
      case "string": return item.isWellFormed();
      case "number": return Number.isFinite(item);
      default: return item === null;
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
    if (!isPlainObject(item)) return isScalar(item);
    for (const key of keys(item)) {
      if (!key.isWellFormed()) return false;
      const inner = item[key];
      if (inner !== undefined && !isPlain(inner, depth + 1)) return false;
    }
    return true;
  };

  return (value) => {
    try { return isPlain(value, 0); } catch { return false; /* No stack left, or a getter. */ }
  };
}
