// Formats values as node prints them, for console. Evaluated when a program first prints more than
// plain text.
() => {
  const { getPrototypeOf, getOwnPropertyDescriptor, hasOwn, is, keys } = Object;
  const { isArray } = Array;
  const LINE = 80, WIDTH = 72, GROUPED = 6, COLUMNS = 15, DEPTH = 2, ITEMS = 100, UNITED = 3;
  const TEXT = 10000, MEMBERS = 2000;
  const NAME = /^[A-Za-z_]\w*$/;
  const ESCAPES = { "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", "\\": "\\\\" };
  const TypedArray = getPrototypeOf(Uint8Array);
  const tagOf = (value) => Object.prototype.toString.call(value).slice(8, -1);
  const isOf = (value, kind) => {
    try { return value instanceof kind; } catch { return false; }
  };
  // Compiling these sets of characters is slow, and most texts need none.
  let wide, narrow;
  const columns = (text) => {
    if (/^[\x20-\x7e]*$/.test(text)) return text.length;
    wide ??= new RegExp("[\\u1100-\\u115f\\u2e80-\\u303e\\u3041-\\ua4cf\\uac00-\\ud7a3" +
      "\\uf900-\\ufaff\\ufe30-\\ufe6f\\uff00-\\uff60\\uffe0-\\uffe6\\u{1f300}-\\u{1faff}]", "gu");
    narrow ??= new RegExp("[\\p{Mn}\\p{Me}\\p{Cf}]", "gu");
    const shown = text.normalize("NFC").replace(narrow, "");
    return [...shown].length + (shown.match(wide)?.length ?? 0);
  };

  // --- text ------------------------------------------------------------------------------------

  const escaped = (char) => {
    const code = char.charCodeAt(0);
    return ESCAPES[char] ?? (code > 0xff ? `\\u${code.toString(16).toUpperCase()}`
      : `\\x${code.toString(16).toUpperCase().padStart(2, "0")}`);
  };
  const quoted = (text) => {
    const quote = !text.includes("'") ? "'" : !text.includes('"') ? '"'
      : !text.includes("`") && !text.includes("${") ? "`" : "'";
    const body = text.replace(/[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]/gu, escaped);
    return quote + (quote === "'" ? body.replace(/'/g, "\\'") : body) + quote;
  };
  const many = (count) => `... ${count} more item${count > 1 ? "s" : ""}`;
  const number = (value) => (is(value, -0) ? "-0" : `${value}`);
  const string = (state, text) => {
    let rest = "";
    if (text.length > state.text) {
      const left = text.length - state.text;
      rest = `... ${left} more character${left > 1 ? "s" : ""}`;
      text = text.slice(0, state.text);
    }
    if (text.length > 16 && text.length > state.line - state.indent - 4) {
      const lines = text.split(/(?<=\n)/).map(quoted);
      return lines.join(` +\n${" ".repeat(state.indent + 2)}`) + rest;
    }
    return quoted(text) + rest;
  };

  // --- the name of a value ---------------------------------------------------------------------

  const makerOf = (value) => {
    for (let item = value; item !== null; item = getPrototypeOf(item)) {
      const maker = getOwnPropertyDescriptor(item, "constructor")?.value;
      if (typeof maker === "function" && maker.name && isOf(value, maker)) return `${maker.name}`;
    }
    return null;
  };
  const tagIn = (value, maker) => {
    const tag = value[Symbol.toStringTag];
    if (typeof tag !== "string" || tag === "" || tag === maker) return "";
    return Object.prototype.propertyIsEnumerable.call(value, Symbol.toStringTag) ? "" : tag;
  };
  const called = (value, kind, size = "") => {
    const maker = makerOf(value), tag = tagIn(value, maker);
    if (maker === null) {
      return `[${kind}${size}: null prototype] ${tag && tag !== kind ? `[${tag}] ` : ""}`;
    }
    return `${maker}${size} ${tag ? `[${tag}] ` : ""}`;
  };
  const functionName = (value) => {
    const source = Function.prototype.toString.call(value);
    const name = typeof value.name === "string" ? value.name : "";
    if (/^class\b/.test(source)) {
      const parent = getPrototypeOf(value)?.name;
      return `[class ${name || "(anonymous)"}${parent ? ` extends ${parent}` : ""}]`;
    }
    const kind = tagOf(value);
    const made = makerOf(value) === null ? " (null prototype)" : "";
    return `[${kind}${made}${name ? `: ${name}` : " (anonymous)"}]`;
  };
  const errorText = (state, error) => {
    let text;
    try {
      text = error.message ? `${error.name}: ${error.message}` : `${error.name}`;
    } catch {
      text = "Error";
    }
    return state.depth0 ? text : `[${text}]`;
  };

  // --- the parts of a value --------------------------------------------------------------------

  const named = (value, filter = () => true) => [
    ...keys(value).filter(filter),
    ...Object.getOwnPropertySymbols(value)
      .filter((key) => getOwnPropertyDescriptor(value, key).enumerable),
  ];
  const notIndex = (key) => !/^(?:0|[1-9]\d{0,9})$/.test(key);
  const property = (state, value, key) => {
    const found = getOwnPropertyDescriptor(value, key) ?? { value: value[key], enumerable: true };
    let shown = "undefined";
    if (found.get) shown = found.set ? "[Getter/Setter]" : "[Getter]";
    else if (found.set) shown = "[Setter]";
    else shown = nested(state, found.value);
    if (typeof key === "symbol") return `[${key.toString()}]: ${shown}`;
    if (!found.enumerable) return `[${key}]: ${shown}`;
    if (key === "__proto__") return `['__proto__']: ${shown}`;
    return `${NAME.test(key) ? key : quoted(key)}: ${shown}`;
  };
  const nested = (state, value) => {
    state.indent += 2;
    const shown = formatted(state, value);
    state.indent -= 2;
    return shown;
  };
  const counted = (state, source, size, show) => {
    const items = [];
    let index = 0;
    for (const item of source) {
      if (index++ >= state.items) break;
      items.push(show(item));
    }
    if (size > items.length) items.push(many(size - items.length));
    return items;
  };
  const arrayItems = (state, value) => {
    const items = [];
    let at = 0;
    while (at < value.length && items.length < state.items) {
      if (hasOwn(value, at)) {
        items.push(nested(state, value[at++]));
        continue;
      }
      const from = at;
      while (at < value.length && !hasOwn(value, at)) at++;
      items.push(`<${at - from} empty item${at - from > 1 ? "s" : ""}>`);
    }
    if (at < value.length) items.push(many(value.length - at));
    return items;
  };

  // The form of a value: prefix, brackets and parts.
  const shape = (state, value) => {
    if (isArray(value)) {
      const plain = makerOf(value) === "Array" && !tagIn(value, "Array");
      const before = plain ? "" : called(value, "Array", `(${value.length})`);
      const items = () => arrayItems(state, value), rest = named(value, notIndex);
      return { open: `${before}[`, close: "]", items, list: true, rest };
    }
    if (isOf(value, Set)) {
      const items = () => counted(state, Set.prototype.values.call(value), value.size,
        (item) => nested(state, item));
      return { open: `${called(value, "Set", `(${value.size})`)}{`, items, rest: named(value) };
    }
    if (isOf(value, Map)) {
      const items = () => counted(state, Map.prototype.entries.call(value), value.size,
        ([key, item]) => `${nested(state, key)} => ${nested(state, item)}`);
      return { open: `${called(value, "Map", `(${value.size})`)}{`, items, rest: named(value) };
    }
    if (isOf(value, TypedArray)) {
      const open = `${called(value, tagOf(value), `(${value.length})`)}[`;
      const shown = (item) => (typeof item === "bigint" ? `${item}n` : number(item));
      const all = TypedArray.prototype.values.call(value);
      const items = () => counted(state, all, value.length, shown);
      return { open, close: "]", items, list: true, rest: named(value, notIndex) };
    }
    return plainShape(state, value);
  };
  const plainShape = (state, value) => {
    const rest = named(value), none = () => [];
    if (typeof value === "function") return { base: functionName(value), items: none, rest };
    const kind = tagOf(value);
    if (kind === "RegExp" && isOf(value, RegExp)) return { base: `${value}`, items: none, rest };
    if (isOf(value, Date)) {
      const base = isNaN(value) ? "Invalid Date" : Date.prototype.toISOString.call(value);
      return { base, items: none, rest };
    }
    if (isOf(value, Error)) {
      for (const key of ["cause", "errors"]) {
        if (hasOwn(value, key) && !rest.includes(key)) rest.push(key);
      }
      const shown = rest.filter((key) => !["name", "message", "stack"].includes(key));
      return { base: errorText(state, value), items: none, rest: shown };
    }
    for (const boxed of [Number, String, Boolean, BigInt, Symbol]) {
      if (!isOf(value, boxed)) continue;
      const inner = boxed.prototype.valueOf.call(value);
      const base = `[${boxed.name}: ${formatted({ ...state, depth0: false }, inner)}]`;
      return { base, items: none, rest: rest.filter((key) => boxed !== String || notIndex(key)) };
    }
    return openShape(state, value, rest);
  };
  const openShape = (state, value, rest) => {
    const none = () => [];
    if (isOf(value, Promise)) {
      return { open: `${called(value, "Promise")}{`, items: () => ["<pending>"], rest };
    }
    if (isOf(value, WeakMap) || isOf(value, WeakSet)) {
      return { open: `${called(value, "WeakMap")}{`, items: () => ["<items unknown>"], rest };
    }
    if (isOf(value, ArrayBuffer)) {
      const items = () => {
        const bytes = [...new Uint8Array(value.slice(0, 50))];
        const shown = bytes.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
        const left = value.byteLength - bytes.length;
        const more = left > 0 ? ` ... ${left} more byte${left > 1 ? "s" : ""}` : "";
        return [`[Uint8Contents]: <${shown}${more}>`, `byteLength: ${value.byteLength}`];
      };
      return { open: `${called(value, "ArrayBuffer")}{`, items, rest };
    }
    if (tagOf(value) === "Arguments") return { open: "[Arguments] {", items: none, rest };
    const name = called(value, "Object");
    return { open: `${name === "Object " ? "" : name}{`, items: none, rest };
  };

  // --- lines -----------------------------------------------------------------------------------

  // Arranges many short items in columns.
  const grouped = (state, items, value) => {
    const more = items.length > state.items ? items.slice(state.items) : [];
    const cells = more.length ? items.slice(0, state.items) : items;
    const widths = cells.map(columns);
    const total = widths.reduce((sum, width) => sum + width + 2, 0);
    const widest = Math.max(...widths), cell = widest + 2;
    if (cell * 3 + state.indent >= state.line) return items;
    if (total / cell <= 5 && widest > 6) return items;
    const biased = Math.max(cell - 3 - Math.sqrt(cell - total / items.length), 1);
    const count = Math.min(
      Math.round(Math.sqrt(2.5 * biased * cells.length) / biased),
      Math.floor((state.line - state.indent) / cell), UNITED * 4, COLUMNS,
    );
    if (count <= 1) return items;
    const across = [];
    for (let column = 0; column < count; column++) {
      let width = 0;
      for (let at = column; at < cells.length; at += count) width = Math.max(width, widths[at]);
      across.push(width + 2);
    }
    let numeric = value !== undefined;
    for (let at = 0; numeric && at < items.length; at++) {
      numeric = typeof value[at] === "number" || typeof value[at] === "bigint";
    }
    const rows = [];
    for (let at = 0; at < cells.length; at += count) {
      const row = cells.slice(at, at + count);
      const last = row.length - 1;
      rows.push(row.map((text, column) => {
        const entry = column < last ? `${text}, ` : text;
        const width = across[column] - (column < last ? 0 : 2) + text.length - widths[at + column];
        if (numeric) return entry.padStart(width);
        return column < last ? entry.padEnd(width) : entry;
      }).join(""));
    }
    return [...rows, ...more];
  };
  const joined = (state, shape, items, value, level) => {
    const { base = "", open = "{", close = "}", list } = shape;
    const before = base ? `${base} ` : "";
    const rows = list && items.length > GROUPED ? grouped(state, items, value) : items;
    if (state.deepest - level < UNITED && rows === items) {
      const start = items.length * 2 + state.indent + open.length + base.length + 10;
      const total = items.reduce((sum, item) => sum + item.length, start);
      const line = items.join(", ");
      if (total <= state.line && !line.includes("\n") && !base.includes("\n")) {
        return `${before}${open} ${line} ${close}`;
      }
    }
    const margin = `\n${" ".repeat(state.indent)}`;
    return `${before}${open}${margin}  ${rows.join(`,${margin}  `)}${margin}${close}`;
  };
  const formatted = (state, value) => {
    switch (typeof value) {
      case "string": return string(state, value);
      case "number": return number(value);
      case "bigint": return `${value}n`;
      case "symbol": return value.toString();
      case "object": if (value === null) return "null"; break;
      case "function": break;
      default: return String(value);
    }
    if (state.seen.includes(value)) {
      if (!state.circles.has(value)) state.circles.set(value, state.circles.size + 1);
      return `[Circular *${state.circles.get(value)}]`;
    }
    return structured(state, value);
  };
  const isEmpty = (value) => {
    if (isArray(value) || isOf(value, TypedArray)) return value.length === 0;
    if (isOf(value, Map) || isOf(value, Set)) return value.size === 0;
    return ![Promise, WeakMap, WeakSet, ArrayBuffer].some((kind) => isOf(value, kind));
  };
  const structured = (state, value) => {
    const level = state.seen.length;
    state.depth0 = level === 0;
    const found = shape(state, value);
    const { base, rest, close = "}" } = found;
    if (!rest.length && (base !== undefined || isEmpty(value))) {
      return base ?? `${found.open}${close}`;
    }
    if (level > state.depth) {
      const kind = isArray(value) ? "Array" : "Object";
      return base ?? `[${called(value, kind).slice(0, -1)}]`;
    }
    if (found.base !== undefined) found.open = "{";
    state.seen.push(value);
    state.deepest = level;
    const items = found.items();
    for (const key of rest.slice(0, MEMBERS)) items.push(property(state, value, key));
    if (rest.length > MEMBERS) items.push(many(rest.length - MEMBERS));
    state.seen.pop();
    if (state.circles.has(value)) {
      const mark = `<ref *${state.circles.get(value)}>`;
      found.base = base ? `${mark} ${base}` : mark;
    }
    return joined(state, found, items, found.list ? value : undefined, level);
  };
  const inspect = (value, options = {}) => {
    const { depth = DEPTH, maxArrayLength = ITEMS, breakLength = LINE } = options ?? {};
    const state = {
      depth: depth ?? Infinity, items: maxArrayLength ?? Infinity, line: breakLength, text: TEXT,
      indent: 0, seen: [], circles: new Map(), deepest: 0, depth0: true,
    };
    try {
      return formatted(state, value);
    } catch (error) { // A trap or getter of the program threw, or the stack is full.
      if (error instanceof RangeError || error instanceof InternalError) throw error;
      return typeof value === "function" ? "[Function]" : "[Object]";
    }
  };

  // --- console ---------------------------------------------------------------------------------

  const ownText = (value) => {
    if (typeof value.toString !== "function") return false;
    if (hasOwn(value, "toString")) return true;
    let holder = value;
    do holder = getPrototypeOf(holder); while (holder && !hasOwn(holder, "toString"));
    const maker = holder && getOwnPropertyDescriptor(holder, "constructor")?.value;
    return typeof maker === "function" && !isBuiltIn(maker);
  };
  const isBuiltIn = (maker) => /\{\s*\[native code\]\s*\}$/.test(
    Function.prototype.toString.call(maker));
  const numeral = (value, read) => {
    if (typeof value === "bigint") return `${value}n`;
    return typeof value === "symbol" ? "NaN" : number(read(value));
  };
  const PLACES = {
    s: (value) => {
      if (typeof value === "bigint") return `${value}n`;
      if (typeof value === "number") return number(value);
      if (value === null || typeof value !== "object" || ownText(value)) return String(value);
      return inspect(value, { depth: 0 });
    },
    d: (value) => numeral(value, Number),
    i: (value) => numeral(value, parseInt),
    f: (value) => (typeof value === "symbol" ? "NaN" : number(parseFloat(value))),
    j: (value) => {
      try { return JSON.stringify(value) ?? "undefined"; } catch { return "[Circular]"; }
    },
    O: (value) => inspect(value),
    o: (value) => inspect(value, { depth: 4 }),
    c: () => "",
  };
  const format = (...values) => {
    const words = [];
    if (typeof values[0] === "string" && values.length > 1) {
      let used = 1;
      const text = values[0].replace(/%([sdifjoOc%])/g, (place, kind) => {
        if (kind === "%") return "%";
        return used < values.length ? PLACES[kind](values[used++]) : place;
      });
      words.push(text);
      values = values.slice(used);
    }
    for (const value of values) words.push(typeof value === "string" ? value : inspect(value));
    return words.join(" ");
  };

  const border = (widths, left, between, right) =>
    left + widths.map((width) => "─".repeat(width)).join(between) + right;
  const row = (cells, widths) => {
    const filled = cells.map((cell, at) => ` ${cell}${" ".repeat(widths[at] - columns(cell) - 1)}`);
    return `│${filled.join("│")}│`;
  };
  const drawn = (head, rows) => {
    const widths = head.map((title, at) =>
      Math.max(columns(title), ...rows.map((cells) => columns(cells[at]))) + 2);
    return [
      border(widths, "┌", "┬", "┐"), row(head, widths), border(widths, "├", "┼", "┤"),
      ...rows.map((cells) => row(cells, widths)), border(widths, "└", "┴", "┘"),
    ].join("\n");
  };
  const cellOf = (value) => {
    const isLarge = value !== null && typeof value === "object" && !isArray(value) &&
      keys(value).length > 2;
    return inspect(value, { depth: isLarge ? -1 : 0, maxArrayLength: 3, breakLength: Infinity });
  };
  const table = (data, only) => {
    if (data === null || typeof data !== "object") return format(data);
    const isMap = isOf(data, Map), isSet = isOf(data, Set);
    if (isMap) {
      const rows = [...data].map(([key, value], at) => [`${at}`, cellOf(key), cellOf(value)]);
      return drawn(["(iteration index)", "Key", "Values"], rows);
    }
    if (isSet) {
      const rows = [...data].map((value, at) => [`${at}`, cellOf(value)]);
      return drawn(["(iteration index)", "Values"], rows);
    }
    const entries = keys(data).map((key) => [key, data[key]]);
    const titles = only ? [...only] : [];
    let hasValues = false;
    const lines = entries.map(([index, value]) => {
      const cells = new Map();
      const isPlain = value === null || (typeof value !== "object" && typeof value !== "function");
      if (isPlain) hasValues = true;
      else {
        for (const key of only ?? keys(value)) {
          if (!only && !titles.includes(key)) titles.push(key);
          if (hasOwn(value, key)) cells.set(key, cellOf(value[key]));
        }
      }
      return { index, cells, value: isPlain ? cellOf(value) : "" };
    });
    const head = ["(index)", ...titles];
    if (hasValues) head.push("Values");
    return drawn(head, lines.map(({ index, cells, value }) => [
      index, ...titles.map((key) => cells.get(key) ?? ""), ...(hasValues ? [value] : []),
    ]));
  };

  return { inspect, format, table };
}
