// The prelude of a TypeScript session: tools, timers, randomness, output, and the functions of a
// step. Evaluated once, when an instance is made; `host` has the host functions. A program that
// changes the built-in prototypes breaks its own session only: the host checks every reply.
(host) => {
  const { call, random, sleep, stdout, stderr, part: source, encode, decode, emit } = host;
  const { parse, stringify } = JSON;
  const { now: clock } = performance;
  const { defineProperty, hasOwn, is } = Object;
  const isPlain = host.plain;
  const evaluate = eval;
  const then = Promise.prototype.then;
  const apply = Reflect.apply;
  const { has } = Map.prototype;
  const DISCOVER = "list_tools() says what can be called";
  const TIMER_MS_MAX = 2147483647;
  const FILE_CODES = new Map([
    ["EACCES", "PERMISSION_DENIED"], ["EPERM", "PERMISSION_DENIED"],
    ["ERR_FEATURE_UNAVAILABLE_ON_PLATFORM", "UNSUPPORTED_FEATURE"],
  ]);
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

  // Parts of the prelude that few programs need are evaluated at first use.
  const parts = new Map(), bytes = { encode, decode, emit };
  const part = (name) => {
    if (!parts.has(name)) parts.set(name, evaluate(`(${source(name)})`)(part, draw, bytes));
    return parts.get(name);
  };
  const problemOf = (value) => (isPlain(value) ? null : part("problem").problemOf(value));
  const global = (name, value) =>
    defineProperty(own, name, { value, writable: true, configurable: true, enumerable: false });

  // --- one run ---------------------------------------------------------------------------------

  let run, result;
  const begin = () => {
    run = {
      source: "", calls: 0, open: new Map(), unreported: [], timers: [], timer: 0, assigned: false,
      done: false, failed: false, value: undefined, placeholders: [], last: false,
      acted: false, promise: null, margin: "",
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
  let offeredJson = "{}";

  const checked = (args) => {
    while (args.length && args[args.length - 1] === undefined) args.length--;
    const problem = problemOf(args);
    if (problem) throw new TypeError(`the arguments are not plain JSON: ${problem}`);
    return args;
  };
  const fail = ({ code, message }, trace) => {
    const error = new ToolError(code, message);
    if (trace) error.stack = trace;
    return error;
  };
  const calledNow = (name) => (...args) => {
    const request = `${name} ${stringify({ args: checked(args), kwargs: {} })}`;
    run.acted = true;
    const reply = parse(call(request));
    if (reply.error) throw fail(reply.error);
    return reply.value;
  };
  const calledLater = (name) => (...args) => {
    const details = { name, args: parse(stringify(checked(args))), kwargs: {} };
    const trace = new Error().stack;
    return new Promise((resolve, reject) => {
      details.id = ++run.calls;
      run.acted = true;
      run.open.set(details.id, { resolve, reject, trace });
      run.unreported.push(details);
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

  // --- timers: the clock advances when the program is idle --------------------------------------

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

  // --- random: xoshiro128**, seeded by the host at first use -----------------------------------

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
  const write = (emit, text) => {
    if (run.margin) text = run.margin + text.replaceAll("\n", `\n${run.margin}`);
    emit(text.isWellFormed() ? text : text.replace(/[\ud800-\udfff]/gu, escaped));
  };
  const isWord = (value) => typeof value === "string" || typeof value === "boolean" ||
    (typeof value === "number" && !is(value, -0));
  const printer = (emit) => (...values) => {
    const plain = values.every(isWord) && (values.length < 2 || !`${values[0]}`.includes("%"));
    write(emit, plain ? values.join(" ") : part("inspect").format(...values));
  };
  const [out, err] = [printer(stdout), printer(stderr)];
  const rest = { state: () => run, out, err, clock, write: (text) => write(stdout, text) };
  const console = { log: out, info: out, debug: out, dirxml: out, warn: err, error: err };
  for (const name of ["assert", "count", "countReset", "dir", "group", "groupCollapsed", "groupEnd",
    "table", "time", "timeEnd", "timeLog", "trace"]) {
    console[name] = (...values) => part("console")(rest)[name](...values);
  }
  global("console", console);
  global("ToolError", ToolError);

  // --- globals of browsers and node -------------------------------------------------------------

  const late = (from, ...names) => {
    for (const name of names) {
      defineProperty(own, name, {
        get: () => {
          global(name, part(from)[name]);
          return own[name];
        },
        set: (value) => global(name, value), configurable: true, enumerable: false,
      });
    }
  };
  late("url", "URL", "URLSearchParams");
  late("web", "TextEncoder", "TextDecoder", "structuredClone", "atob", "btoa", "crypto");
  late("events", "AbortController", "AbortSignal", "Event", "EventTarget");
  if (!hasOwn(own, "DOMException")) late("web", "DOMException");
  late("intl", "Intl");
  late("buffer", "Buffer");
  global("require", (name) => part("fs").load(name));
  // What imports are translated to.
  const imported = (module, name) => part("fs").imported(module, name);
  imported.later = async (module) => imported(module, "*");
  defineProperty(own, "__import", { value: Object.freeze(imported) });
  const method = (holder, name, value) =>
    defineProperty(holder, name, { value, writable: true, configurable: true });
  for (const { prototype } of [Number, BigInt]) {
    method(prototype, "toLocaleString", function toLocaleString(locales, options) {
      return part("locale").number(apply(prototype.valueOf, this, []), locales, options);
    });
  }
  const { getTime } = Date.prototype;
  const dated = (name, needed, standard) => method(Date.prototype, name, {
    [name](locales, options) {
      const when = new Date(apply(getTime, this, []));
      return part("locale").date(when, needed, standard, locales, options);
    },
  }[name]);
  dated("toLocaleString", "any", "all");
  dated("toLocaleDateString", "date", "date");
  dated("toLocaleTimeString", "time", "time");
  for (const name of ["toString", "toTimeString"]) { // The engine omits the name of the zone.
    const plainly = Date.prototype[name];
    method(Date.prototype, name, {
      [name]() {
        const text = apply(plainly, this, []);
        return text.endsWith("0") ? `${text} (Coordinated Universal Time)` : text;
      },
    }[name]);
  }
  method(String.prototype, "localeCompare", function localeCompare(other, locales, options) {
    if (this === undefined || this === null) throw new TypeError("it is no text");
    return part("order").compare(`${this}`, `${other}`, locales, options);
  });

  const builtIn = new Set(Reflect.ownKeys(own));

  // --- errors, as objects for the host ---------------------------------------------------------

  const text = (value) => {
    try { return String(value); } catch { return ""; }
  };
  const codeOf = (error) => {
    if (error instanceof ToolError) return "TOOL_ERROR";
    if (error instanceof InternalError && error.message === "out of memory") {
      return "MEMORY_EXCEEDED";
    }
    if (error instanceof RangeError && error.message === TOO_DEEP) return "STACK_OVERFLOW";
    const found = error instanceof Error && hasOwn(error, "code") && FILE_CODES.get(error.code);
    if (found) return found;
    const unknown = error instanceof ReferenceError && text(error.message).endsWith("not defined");
    return unknown ? "UNKNOWN_TOOL" : "RUNTIME_ERROR";
  };
  const words = (error) => {
    if (!(error instanceof Error)) return `thrown: ${part("inspect").inspect(error)}`;
    const [name, message] = [text(error.name), text(error.message)];
    if (name === "TOOL_ERROR" && error instanceof ToolError) return message;  // The code says it.
    return message ? `${name}: ${message}` : name;
  };
  const describe = (error, code) => {
    code ??= codeOf(error);
    let stack = "";
    try { stack = text(error.stack); } catch { /* A getter of the program threw. */ }
    const hint = code === "UNKNOWN_TOOL" ? DISCOVER : null;
    return failure(code, words(error), hint, stack);
  };
  const failure = (code, message, hint = null, stack = "") => {
    const details = { code, message: message.slice(0, 2000).toWellFormed(), hint };
    const { source } = run;
    begin();
    return stringify({ error: details, stack: stack.slice(0, 10000).toWellFormed(), source });
  };
  const isPromise = (value) => {
    try { return value instanceof Promise; } catch { return false; /* A trap threw. */ }
  };
  const ended = () => {
    if (run.failed) return describe(run.value);
    if (run.assigned) return contracted();
    const value = run.last ? run.value : null;
    if (value === undefined || isPlain(value)) return answered(value ?? null, "json", false);
    const made = part("results").converted(value);
    return answered(made.value, made.kind, made.cut);
  };
  const contracted = () => {
    const plain = result === undefined || problemOf(result) === null;
    const value = plain ? result : part("results").dated(result);
    const problem = plain ? null : problemOf(value);
    if (problem === null) return answered(value ?? null, plain ? "json" : "converted", false);
    const acted = run.acted ? "; the calls of this run have been made" : "";
    const hint = `convert it to null, boolean, number, string, an array or a plain object${acted}`;
    return failure("RESULT_NOT_SERIALIZABLE", `the result is not plain JSON: ${problem}`, hint);
  };
  const answered = (value, kind, cut) => {
    const reply = `{"value":${stringify(value)},"kind":"${kind}"${cut ? ',"cut":true' : ""}}`;
    begin();
    return reply;
  };
  // The end of a run: the host gets the files that the run has written.
  const finish = () => {
    for (const name of run.placeholders) if (own[name] === undefined) delete own[name];
    if (apply(has, parts, ["files"])) part("files").sendWritten();
  };

  const bind = (request) => {
    const { tools: offered, inputs, assigned, renewed, source, last } = parse(request);
    run.source = source;
    run.last = last;
    if (offered !== offeredJson) offer(parse(offeredJson = offered));
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
      const failed = (error) => { mine.done = mine.failed = true; mine.value = error; };
      apply(then, promise, [
        ({ value }) => {
          mine.value = value;
          const isValue = value === null || typeof value !== "object" || !mine.last;
          if (isValue || !isPromise(value)) mine.done = true;
          else { // The value of a promise is the value that it resolves to.
            mine.promise = value;
            apply(then, value, [(made) => { mine.done = true; mine.value = made; }, failed]);
          }
        },
        failed,
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
    // After all jobs: returns the reply, or "" if a timer is due.
    pump() {
      if (run.done) {
        try {
          finish();
          return ended();
        } catch (error) { return describe(error); }
      }
      let next = nextTimer();
      if (next && !run.open.size && next.due > clock()) sleep(String(next.due - clock()));
      if (next && (!run.open.size || next.due <= clock())) return "";
      if (!run.open.size) {
        try { finish(); } catch (error) { return describe(error); }
        if (run.promise && run.assigned) return contracted();
        if (run.promise) return answered("Promise { <pending> }", "repr", false);
        return failure("RUNTIME_ERROR", "the program awaits something that can never happen");
      }
      const calls = run.unreported.splice(0);
      const timer_s = next ? (next.due - clock()) / 1000 : null;
      return stringify({ waits: { calls, outstanding: [...run.open.keys()], timer_s } });
    },
    fire() {
      try { fire(nextTimer()); } catch (error) {
        run.done = run.failed = true;
        run.value = error;
      }
    },
    files: (request) => stringify(part("files").serve(parse(request))),
    refuse: (error) => describe(error, error instanceof SyntaxError ? "SYNTAX_ERROR" : undefined),
  };
}
