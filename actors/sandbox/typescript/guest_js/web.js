// Functions of browsers and node: text encodings, structured clones, random ids. Evaluated when a
// program first uses one.
(_part, draw) => {
  const { fromCharCode, fromCodePoint } = String;
  const TypedArray = Object.getPrototypeOf(Uint8Array);
  const tag = (Class, name = Class.name) => Object.defineProperty(
    Class.prototype, Symbol.toStringTag, { value: name, configurable: true });

  const CODES = {
    InvalidCharacterError: 5, AbortError: 20, TimeoutError: 23, DataCloneError: 25,
  };
  class DOMException extends Error {
    #name;
    constructor(message = "", name = "Error") {
      super(message);
      this.#name = `${name}`;
    }
    get name() { return this.#name; }
    get code() { return CODES[this.#name] ?? 0; }
  }

  // --- text as bytes ---------------------------------------------------------------------------

  const encoded = (text) => {
    const bytes = [];
    for (const char of text) {
      const code = char.codePointAt(0);
      const point = code >= 0xd800 && code <= 0xdfff ? 0xfffd : code;
      if (point < 0x80) bytes.push(point);
      else if (point < 0x800) bytes.push(0xc0 | (point >> 6), 0x80 | (point & 63));
      else if (point < 0x10000) {
        bytes.push(0xe0 | (point >> 12), 0x80 | ((point >> 6) & 63), 0x80 | (point & 63));
      } else {
        bytes.push(0xf0 | (point >> 18), 0x80 | ((point >> 12) & 63), 0x80 | ((point >> 6) & 63),
          0x80 | (point & 63));
      }
    }
    return bytes;
  };
  const decoded = (bytes, fatal) => {
    const chars = [];
    let at = 0;
    const bad = () => {
      if (fatal) throw new TypeError("The encoded data was not valid for encoding utf-8");
      chars.push("\ufffd");
    };
    while (at < bytes.length) {
      const lead = bytes[at++];
      if (lead < 0x80) {
        chars.push(fromCharCode(lead));
        continue;
      }
      const more = lead >= 0xf0 && lead < 0xf5 ? 3 : lead >= 0xe0 && lead < 0xf0 ? 2
        : lead >= 0xc2 && lead < 0xe0 ? 1 : 0;
      let point = lead & (0x3f >> more), read = 0;
      let least = { 0xe0: 0xa0, 0xf0: 0x90 }[lead] ?? 0x80;
      let most = { 0xed: 0x9f, 0xf4: 0x8f }[lead] ?? 0xbf;
      while (read < more && bytes[at] >= least && bytes[at] <= most) {
        point = (point << 6) | (bytes[at++] & 63);
        [least, most] = [0x80, 0xbf];
        read++;
      }
      if (more && read === more) chars.push(fromCodePoint(point));
      else bad();
    }
    return chars.join("");
  };
  const bytesOf = (data) => {
    if (data === undefined) return new Uint8Array();
    if (data instanceof ArrayBuffer) return new Uint8Array(data);
    if (ArrayBuffer.isView(data)) {
      return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    }
    throw new TypeError("The input must be an instance of ArrayBuffer or ArrayBufferView");
  };
  class TextEncoder {
    get encoding() { return "utf-8"; }
    encode(text = "") { return Uint8Array.from(encoded(`${text}`)); }
    encodeInto(text, into) {
      let read = 0, written = 0;
      for (const char of `${text}`) {
        const bytes = encoded(char);
        if (written + bytes.length > into.length) break;
        into.set(bytes, written);
        written += bytes.length;
        read += char.length;
      }
      return { read, written };
    }
  }
  class TextDecoder {
    #label; #fatal; #keep; #rest = [];
    constructor(label = "utf-8", options = {}) {
      const name = `${label}`.trim().toLowerCase();
      if (/^(utf-?8|unicode-1-1-utf-8)$/.test(name)) this.#label = "utf-8";
      else if (/^(ascii|us-ascii|latin1|iso-8859-1|windows-1252)$/.test(name)) {
        this.#label = "windows-1252";
      } else throw new RangeError(`The "${label}" encoding is not supported`);
      [this.#fatal, this.#keep] = [Boolean(options?.fatal), Boolean(options?.ignoreBOM)];
    }
    get encoding() { return this.#label; }
    get fatal() { return this.#fatal; }
    get ignoreBOM() { return this.#keep; }
    decode(data, options) {
      const all = [...this.#rest, ...bytesOf(data)];
      this.#rest = [];
      if (this.#label !== "utf-8") return all.map((byte) => fromCharCode(byte)).join("");
      if (options?.stream) {
        const from = Math.max(0, all.length - 3);
        for (let at = all.length - 1; at >= from; at--) {
          const needs = all[at] >= 0xf0 ? 4 : all[at] >= 0xe0 ? 3 : all[at] >= 0xc0 ? 2 : 1;
          if ((all[at] & 0xc0) === 0x80) continue;
          if (at + needs > all.length) this.#rest = all.splice(at);
          break;
        }
      }
      const text = decoded(all, this.#fatal);
      return !this.#keep && text.startsWith("\ufeff") ? text.slice(1) : text;
    }
  }

  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const btoa = (text) => {
    const data = `${text}`;
    let out = "";
    for (let at = 0; at < data.length; at += 3) {
      const codes = [0, 1, 2].map((n) => data.charCodeAt(at + n));
      if (codes.some((code) => code > 255)) {
        throw new DOMException("Invalid character", "InvalidCharacterError");
      }
      const [a, b, c] = codes;
      out += LETTERS[a >> 2] + LETTERS[((a & 3) << 4) | (b >> 4)];
      out += Number.isNaN(b) ? "=" : LETTERS[((b & 15) << 2) | (c >> 6)];
      out += Number.isNaN(c) ? "=" : LETTERS[c & 63];
    }
    return out;
  };
  const atob = (text) => {
    let data = `${text}`.replace(/[\t\n\f\r ]/g, "");
    if (data.length % 4 === 0) data = data.replace(/==?$/, "");
    if (data.length % 4 === 1 || /[^A-Za-z0-9+/]/.test(data)) {
      throw new DOMException("The string to be decoded is not correctly encoded.",
        "InvalidCharacterError");
    }
    let out = "", bits = 0, held = 0;
    for (const char of data) {
      held = ((held << 6) | LETTERS.indexOf(char)) & 0xffff;
      bits += 6;
      if (bits >= 8) out += fromCharCode((held >> (bits -= 8)) & 255);
    }
    return out;
  };

  // --- copies ----------------------------------------------------------------------------------

  const ERRORS = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
  const uncloneable = (value) =>
    new DOMException(`${String(value)} could not be cloned.`, "DataCloneError");
  const copied = (value, copies) => {
    if (typeof value === "symbol" || typeof value === "function") throw uncloneable(value);
    if (value === null || typeof value !== "object") return value;
    if (copies.has(value)) return copies.get(value);
    const keep = (copy) => (copies.set(value, copy), copy);
    if (value instanceof Date) return keep(new Date(value.getTime()));
    if (value instanceof RegExp) return keep(new RegExp(value.source, value.flags));
    for (const boxed of [Number, String, Boolean, BigInt]) {
      if (value instanceof boxed) return keep(Object(boxed.prototype.valueOf.call(value)));
    }
    if (value instanceof ArrayBuffer) return keep(value.slice(0));
    if (ArrayBuffer.isView(value)) {
      const buffer = copied(value.buffer, copies);
      const length = value instanceof DataView ? value.byteLength : value.length;
      const Kind = value instanceof DataView ? DataView : globalThis[value[Symbol.toStringTag]];
      return keep(new Kind(buffer, value.byteOffset, length));
    }
    if (value instanceof Map) {
      const copy = keep(new Map());
      for (const [key, item] of [...value]) copy.set(copied(key, copies), copied(item, copies));
      return copy;
    }
    if (value instanceof Set) {
      const copy = keep(new Set());
      for (const item of [...value]) copy.add(copied(item, copies));
      return copy;
    }
    if (value instanceof Error) {
      const copy = keep(new (ERRORS[value.name] ?? Error)(value.message));
      for (const key of ["stack", "cause"]) {
        if (!Object.hasOwn(value, key)) continue;
        const property = { value: copied(value[key], copies), writable: true, configurable: true };
        Object.defineProperty(copy, key, property);
      }
      return copy;
    }
    if ([Promise, WeakMap, WeakSet, WeakRef].some((kind) => value instanceof kind)) {
      throw uncloneable("#<" + value[Symbol.toStringTag] + ">");
    }
    const copy = keep(Array.isArray(value) ? new Array(value.length) : {});
    for (const key of Object.keys(value)) copy[key] = copied(value[key], copies);
    return copy;
  };
  const structuredClone = (value) => copied(value, new Map());

  // --- random ----------------------------------------------------------------------------------

  const WHOLE = /^(Uint|Int|BigInt|BigUint)\d+(Clamped)?Array$/;
  const getRandomValues = (array) => {
    if (!(array instanceof TypedArray) || !WHOLE.test(array[Symbol.toStringTag])) {
      throw new DOMException("The data argument must be an integer-type TypedArray",
        "TypeMismatchError");
    }
    if (array.byteLength > 65536) {
      throw new DOMException("The requested length exceeds 65,536 bytes", "QuotaExceededError");
    }
    const bytes = bytesOf(array);
    for (let at = 0; at < bytes.length; at++) bytes[at] = draw() & 255;
    return array;
  };
  const randomUUID = () => {
    const bytes = getRandomValues(new Uint8Array(16));
    bytes[6] = (bytes[6] & 15) | 64;
    bytes[8] = (bytes[8] & 63) | 128;
    const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  };
  const crypto = { getRandomValues, randomUUID };
  Object.defineProperty(crypto, Symbol.toStringTag, { value: "Crypto", configurable: true });

  for (const made of [TextEncoder, TextDecoder, DOMException]) tag(made);
  return { DOMException, TextDecoder, TextEncoder, atob, btoa, crypto, structuredClone };
}
