(// What lives in a TypeScript session beside the program: tools, timers, chance, output, and the way
// a step travels in and out. Evaluated once, when an instance is made; `host` is what it may ask.
// A program that changes the built-in prototypes can break this for its own session, and no more:
// the host checks whatever it is told.
(host) => {
  const { call, random, sleep, stdout, stderr } = host;
  const { parse, stringify } = JSON;
  const { now: clock } = performance;
  const { defineProperty, hasOwn } = Object;
  const { complaint, inspect } = host.text;
  const then = Promise.prototype.then;
  const apply = Reflect.apply;
  const DISCOVER = "list_tools() says what can be called";
  const TIMER_MS_MAX = 2147483647;
  const TOO_DEEP = "Maximum call stack size exceeded";

  class ToolError extends Error {
    constructor(code, message) {
      super(message);
      this.name = this.code = code;
    }
  }
  for (const field of ["name", "code"]) {
    defineProperty(ToolError.prototype, field, { value: "ToolError", writable: true });
  }

  const own = globalThis;
  const global = (name, value) =>
    defineProperty(own, name, { value, writable: true, configurable: true, enumerable: false });

  // --- one run ---------------------------------------------------------------------------------

  let run, result;
  const begin = () => {
    run = {
      source: "", calls: 0, open: new Map(), untold: [], timers: [], timer: 0, assigned: false,
      done: false, failed: false, value: undefined, placeholders: [], last: false,
    };
  };
  begin();
  defineProperty(own, "result", {
    get: () => result,
    set: (value) => { result = value; run.assigned = true; },
    enumerable: true,
  });

  // --- tools -----------------------------------------------------------------------------------

  const tools = new Map(), hidden = new Map();
  let known = "{}";

  const checked = (args) => {
    while (args.length && args[args.length - 1] === undefined) args.length--;
    const problem = complaint(args);
    if (problem) throw new TypeError(`the arguments are not plain JSON: ${problem}`);
    return args;
  };
  const fail = ({ code, message }, trace) => {
    const error = new ToolError(code, message);
    if (trace) error.stack = trace;
    return error;
  };
  const calledNow = (name) => (...args) => {
    const reply = parse(call(`${name} ${stringify({ args: checked(args), kwargs: {} })}`));
    if (reply.error) throw fail(reply.error);
    return reply.value;
  };
  const calledLater = (name) => (...args) => {
    const details = { name, args: parse(stringify(checked(args))), kwargs: {} };
    const trace = new Error().stack;
    return new Promise((resolve, reject) => {
      details.id = ++run.calls;
      run.open.set(details.id, { resolve, reject, trace });
      run.untold.push(details);
    });
  };
  const offer = (offered) => {
    for (const [name, { tool }] of tools) {
      if (own[name] === tool) hidden.has(name) ? global(name, hidden.get(name)) : delete own[name];
    }
    tools.clear();
    for (const name in offered) {
      const tool = (offered[name] ? calledLater : calledNow)(name);
      defineProperty(tool, "name", { value: name });
      tools.set(name, { tool });
      if (builtIn.has(name) && !hidden.has(name)) hidden.set(name, own[name]);
      if (!hasOwn(own, name) || own[name] === hidden.get(name)) global(name, tool);
    }
  };

  // --- timers: time passes when nothing else can happen ----------------------------------------

  const timer = (action, delay, args, every) => {
    if (typeof action !== "function") throw new TypeError("a timer needs a function to call");
    const ms = Math.min(Math.max(Number(delay) || 0, 0), TIMER_MS_MAX);
    const entry = { id: ++run.timer, due: clock() + ms, action, args, ms, every };
    run.timers.push(entry);
    return entry.id;
  };
  const cancel = (id) => { run.timers = run.timers.filter((entry) => entry.id !== id); };
  const nextTimer = () => {
    let next;
    for (const entry of run.timers) if (!next || entry.due < next.due) next = entry;
    return next;
  };
  const fire = (entry) => {
    if (entry.every) entry.due = clock() + Math.max(entry.ms, 1);
    else cancel(entry.id);
    apply(entry.action, undefined, entry.args);
  };
  global("setTimeout", (action, delay, ...args) => timer(action, delay, args, false));
  global("setInterval", (action, delay, ...args) => timer(action, delay, args, true));
  global("clearTimeout", cancel);
  global("clearInterval", cancel);

  // --- chance: xoshiro128**, seeded by the host at first use -----------------------------------

  let a, b, c, d;
  const draw = () => {
    if (a === undefined) [a, b, c, d] = parse(random());
    const scrambled = Math.imul(b, 5);
    const drawn = Math.imul((scrambled << 7) | (scrambled >>> 25), 9) >>> 0;
    const shifted = b << 9;
    c ^= a; d ^= b; b ^= c; a ^= d; c ^= shifted;
    d = (d << 11) | (d >>> 21);
    return drawn;
  };
  Math.random = () => (draw() * 2097152 + (draw() >>> 11)) / 9007199254740992;

  // --- output ----------------------------------------------------------------------------------

  const escaped = (half) => `\\u${half.charCodeAt(0).toString(16)}`;
  const say = (emit) => (...values) => {
    const text = values.map((value) => inspect(value)).join(" ");
    emit(text.isWellFormed() ? text : text.replace(/\p{Surrogate}/gu, escaped));
  };
  const [out, err] = [say(stdout), say(stderr)];
  global("console", {
    log: out, info: out, debug: out, dir: out, table: out, warn: err, error: err, trace: err,
    assert: (fine, ...values) => { if (!fine) err("Assertion failed", ...values); },
  });
  global("ToolError", ToolError);

  const builtIn = new Set(Reflect.ownKeys(own));

  // --- what went wrong, in words the host understands ------------------------------------------

  const text = (value) => {
    try { return String(value); } catch { return ""; }
  };
  const codeOf = (error) => {
    if (error instanceof ToolError) return "TOOL_ERROR";
    if (error instanceof InternalError && error.message === "out of memory") {
      return "MEMORY_EXCEEDED";
    }
    if (error instanceof RangeError && error.message === TOO_DEEP) return "STACK_OVERFLOW";
    const unknown = error instanceof ReferenceError && text(error.message).endsWith("not defined");
    return unknown ? "UNKNOWN_TOOL" : "RUNTIME_ERROR";
  };
  const words = (error) => {
    if (!(error instanceof Error)) return `thrown: ${inspect(error)}`;
    const [name, message] = [text(error.name), text(error.message)];
    return message ? `${name}: ${message}` : name;
  };
  const describe = (error, code) => {
    code ??= codeOf(error);
    let stack = "";
    try { stack = text(error.stack); } catch { /* The program wrote this getter. */ }
    const hint = code === "UNKNOWN_TOOL" ? DISCOVER : null;
    return failure(code, words(error), hint, stack);
  };
  const failure = (code, message, hint = null, stack = "") => {
    const said = { code, message: message.slice(0, 2000).toWellFormed(), hint };
    const { source } = run;
    begin();
    return stringify({ error: said, stack: stack.slice(0, 10000).toWellFormed(), source });
  };
  const ended = () => {
    if (run.failed) return describe(run.value);
    const value = run.assigned ? result : run.last ? run.value : null;
    const problem = value === undefined ? null : complaint(value);
    if (problem) {
      const hint = "convert it to null, boolean, number, string, an array or a plain object";
      return failure("RESULT_NOT_SERIALIZABLE", `the result is not plain JSON: ${problem}`, hint);
    }
    const reply = `{"value":${stringify(value ?? null)}}`;
    begin();
    return reply;
  };
  const tidy = () => {
    for (const name of run.placeholders) if (own[name] === undefined) delete own[name];
  };

  const bind = (request) => {
    const { tools: offered, inputs, assigned, renewed, source, last } = parse(request);
    run.source = source;
    run.last = last;
    if (offered !== known) offer(parse(known = offered));
    for (const name in inputs) {
      if (name === "result") result = inputs[name];
      else own[name] = inputs[name];
    }
    for (const name of renewed) if (hasOwn(own, name)) own[name] = undefined;
    for (const name of assigned) {
      if (name in own) continue;
      defineProperty(own, name, {
        value: undefined, writable: true, configurable: true, enumerable: true,
      });
      run.placeholders.push(name);
    }
  };

  // --- steps -----------------------------------------------------------------------------------

  return {
    begin(request) {
      begin();
      try { bind(request); } catch (error) { return describe(error); }
    },
    watch(promise) {
      const mine = run;
      apply(then, promise, [
        ({ value }) => { mine.done = true; mine.value = value; },
        (error) => { mine.done = mine.failed = true; mine.value = error; },
      ]);
    },
    settle(request) {
      for (const [id, { value, error }] of parse(request)) {
        const waiting = run.open.get(id);
        if (!waiting) continue;
        run.open.delete(id);
        error ? waiting.reject(fail(error, waiting.trace)) : waiting.resolve(value);
      }
    },
    // After all jobs: the reply, or nothing if a timer is to fire.
    pump() {
      if (run.done) {
        tidy();
        try { return ended(); } catch (error) { return describe(error); }
      }
      let next = nextTimer();
      if (next && !run.open.size && next.due > clock()) sleep(String(next.due - clock()));
      if (next && (!run.open.size || next.due <= clock())) return "";
      if (!run.open.size) {
        tidy();
        return failure("RUNTIME_ERROR", "the program awaits something that can never happen");
      }
      const calls = run.untold.splice(0);
      const timer_s = next ? (next.due - clock()) / 1000 : null;
      return stringify({ waits: { calls, outstanding: [...run.open.keys()], timer_s } });
    },
    fire() {
      try { fire(nextTimer()); } catch (error) {
        run.done = run.failed = true;
        run.value = error;
      }
    },
    refuse: (error) => describe(error, error instanceof SyntaxError ? "SYNTAX_ERROR" : undefined),
  };
}
)({text: (// Values in words: what console prints, and what keeps a value from being plain JSON.
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
)(), ...__host})