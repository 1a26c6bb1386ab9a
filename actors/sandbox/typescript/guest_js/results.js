// Converts values that are not plain JSON: to their evident form in JSON, or to the text that
// console prints. Evaluated when a run first ends with such a value.
(part) => {
  const { isArray } = Array;
  const { getPrototypeOf, keys } = Object;
  const NESTING = 128, ITEMS = 100000, TEXT = 1 << 20, PRINTED = 10000;
  const TypedArray = getPrototypeOf(Uint8Array);
  const ITERATOR = /^(Array|Map|Set|String|RegExp String|Segmenter String) Iterator$/;
  const escaped = (half) => `\\u${half.charCodeAt(0).toString(16)}`;
  const isOf = (value, ...kinds) => kinds.some((kind) => value instanceof kind);

  // The strongest conversion so far: `kind` only increases.
  const KINDS = ["json", "converted", "repr"];
  const raiseKind = (state, kind) => { state.kind = Math.max(state.kind, KINDS.indexOf(kind)); };
  const printed = (state, value) => {
    raiseKind(state, "repr");
    let text;
    try { text = part("inspect").inspect(value); } catch { text = `[${typeof value}]`; }
    if (text.length > PRINTED) {
      state.cut = true;
      text = `${text.slice(0, PRINTED)}...`;
    }
    return wellFormed(text);
  };
  const wellFormed = (text) => (text.isWellFormed() ? text
    : text.replace(/[\ud800-\udfff]/gu, escaped));
  const scalar = (state, item) => {
    switch (typeof item) {
      case "boolean": return item;
      case "string": {
        if (!item.isWellFormed()) raiseKind(state, "repr");
        if (item.length > TEXT) {
          state.cut = true;
          return wellFormed(`${item.slice(0, TEXT)}...`);
        }
        return wellFormed(item);
      }
      case "number": return Number.isFinite(item) ? item : printed(state, item);
      case "bigint":
        raiseKind(state, "converted");
        return Number.isSafeInteger(Number(item)) ? Number(item) : String(item);
      case "undefined":
        raiseKind(state, "converted");
        return null;
      default: return item === null ? null : printed(state, item);
    }
  };
  const listed = (state, items, depth) => {
    const out = [];
    for (const item of items) {
      if (out.length >= ITEMS || state.left-- <= 0) {
        state.cut = true;
        break;
      }
      out.push(made(state, item, depth + 1));
    }
    return out;
  };
  const named = (state, entries, depth) => {
    const out = Object.create(null);
    for (const [key, item] of entries) {
      if (state.left-- <= 0) {
        state.cut = true;
        break;
      }
      const value = { value: made(state, item, depth + 1), enumerable: true };
      Object.defineProperty(out, scalar(state, String(key)), value);
    }
    return out;
  };
  const map = (state, item, depth) => {
    const names = [...item.keys()];
    const plain = names.every((key) => typeof key !== "object" && typeof key !== "function" &&
      typeof key !== "symbol");
    if (plain && new Set(names.map(String)).size === names.length) return named(state, item, depth);
    return listed(state, item, depth);
  };
  const structured = (state, item, depth) => {
    if (isArray(item)) return listed(state, item, depth);
    const parent = getPrototypeOf(item);
    if (typeof item.toJSON === "function" && !isOf(item, Date)) {
      raiseKind(state, "converted");
      return made(state, item.toJSON(), depth + 1);
    }
    if (parent !== null && parent !== Object.prototype) raiseKind(state, "converted");
    if (isOf(item, Date)) return isNaN(item) ? printed(state, item) : item.toISOString();
    if (isOf(item, Map)) return map(state, item, depth);
    if (isOf(item, Set, TypedArray)) return listed(state, item, depth);
    if (isOf(item, ArrayBuffer)) return listed(state, new Uint8Array(item), depth);
    if (isOf(item, DataView)) {
      return listed(state, new Uint8Array(item.buffer, item.byteOffset, item.byteLength), depth);
    }
    if (isOf(item, Number, String, Boolean, BigInt)) return made(state, item.valueOf(), depth);
    const tag = item[Symbol.toStringTag];
    if (typeof tag === "string" && ITERATOR.test(tag)) return listed(state, item, depth);
    if (isOf(item, Error, RegExp, Promise, WeakMap, WeakSet, WeakRef) || tag === "Generator") {
      return printed(state, item);
    }
    const names = keys(item).filter((key) => item[key] !== undefined);
    return named(state, names.map((key) => [key, item[key]]), depth);
  };
  const made = (state, item, depth) => {
    if (item === null || typeof item !== "object") return scalar(state, item);
    if (state.above.includes(item)) {
      raiseKind(state, "repr");
      return "[Circular]";
    }
    if (depth > NESTING) {
      state.cut = true;
      return printed(state, item);
    }
    state.above.push(item);
    try {
      return structured(state, item, depth);
    } catch { // A trap or getter of the program threw.
      return printed(state, item);
    } finally {
      state.above.pop();
    }
  };
  const dated = (item, above) => {
    if (item === null || typeof item !== "object") return item;
    if (item instanceof Date) return isNaN(item) ? item : item.toISOString();
    const parent = getPrototypeOf(item);
    const plain = isArray(item) || parent === null || parent === Object.prototype;
    if (!plain || above.includes(item) || above.length > NESTING) return item;
    const inner = [...above, item];
    if (isArray(item)) return Array.from(item, (part) => dated(part, inner));
    return Object.fromEntries(keys(item).map((key) => [key, dated(item[key], inner)]));
  };

  return {
    converted(value) {
      const state = { kind: 0, cut: false, above: [], left: ITEMS };
      const json = made(state, value, 0);
      return { value: json, kind: KINDS[state.kind], cut: state.cut };
    },
    // A value assigned to `result` is a contract: only dates are converted.
    dated: (value) => dated(value, []),
  };
}
