// Events and abort signals, as browsers and node have them. Evaluated when a program first uses one.
(part) => {
  const { setTimeout } = globalThis;
  const { DOMException } = part("web");
  const tag = (Class) => Object.defineProperty(
    Class.prototype, Symbol.toStringTag, { value: Class.name, configurable: true });

  class Event {
    #type; #cancelable; #prevented = false; #stopped = false;
    target = null;
    constructor(type, options = {}) {
      this.#type = `${type}`;
      this.#cancelable = Boolean(options?.cancelable);
    }
    get type() { return this.#type; }
    get cancelable() { return this.#cancelable; }
    get defaultPrevented() { return this.#prevented; }
    get currentTarget() { return this.target; }
    preventDefault() { this.#prevented = this.#cancelable; }
    stopImmediatePropagation() { this.#stopped = true; }
    static isStopped(event) { return event.#stopped; }
  }
  const { isStopped } = Event;
  delete Event.isStopped;

  class EventTarget {
    #listeners = [];
    addEventListener(type, listener, options) {
      const { once = false, signal } = typeof options === "object" && options ? options : {};
      if (!listener || signal?.aborted) return;
      if (this.#listeners.some((one) => one.type === type && one.listener === listener)) return;
      this.#listeners.push({ type, listener, once });
      signal?.addEventListener("abort", () => this.removeEventListener(type, listener));
    }
    removeEventListener(type, listener) {
      this.#listeners = this.#listeners.filter(
        (one) => one.type !== type || one.listener !== listener);
    }
    dispatchEvent(event) {
      event.target = this;
      for (const { type, listener, once } of [...this.#listeners]) {
        if (type !== event.type || isStopped(event)) continue;
        if (once) this.removeEventListener(type, listener);
        typeof listener === "function" ? listener.call(this, event) : listener.handleEvent(event);
      }
      return !event.defaultPrevented;
    }
  }

  let making = false;
  const made = () => {
    making = true;
    return new AbortSignal();
  };
  let abort;
  class AbortSignal extends EventTarget {
    #aborted = false; #reason;
    onabort = null;
    constructor() {
      if (!making) throw new TypeError("Illegal constructor");
      making = false;
      super();
    }
    get aborted() { return this.#aborted; }
    get reason() { return this.#reason; }
    throwIfAborted() { if (this.#aborted) throw this.#reason; }
    static abort(reason) { return abort(made(), reason); }
    static timeout(ms) {
      const signal = made();
      const reason = new DOMException("The operation was aborted due to timeout", "TimeoutError");
      setTimeout(() => abort(signal, reason), ms);
      return signal;
    }
    static any(signals) {
      const signal = made();
      for (const one of signals) {
        if (one.aborted) return abort(signal, one.reason);
        one.addEventListener("abort", () => abort(signal, one.reason));
      }
      return signal;
    }
    static {
      abort = (
        signal, reason = new DOMException("This operation was aborted", "AbortError")
      ) => {
        if (signal.#aborted) return signal;
        [signal.#aborted, signal.#reason] = [true, reason];
        const event = new Event("abort");
        signal.onabort?.(event);
        signal.dispatchEvent(event);
        return signal;
      };
    }
  }
  class AbortController {
    #signal = made();
    get signal() { return this.#signal; }
    abort(reason) { abort(this.#signal, reason); }
  }

  for (const Class of [Event, EventTarget, AbortSignal, AbortController]) tag(Class);
  return { AbortController, AbortSignal, Event, EventTarget };
}
