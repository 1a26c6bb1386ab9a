// The class Buffer of node, as far as programs use it for files and encodings.
(_part, _draw, { encode, decode }) => {
  const ENCODINGS = {
    "utf8": "utf8", "utf-8": "utf8", "utf16le": "utf16le", "utf-16le": "utf16le",
    "ucs2": "utf16le", "ucs-2": "utf16le", "latin1": "latin1", "binary": "latin1",
    "ascii": "ascii", "base64": "base64", "base64url": "base64url", "hex": "hex",
  };
  const encodingOf = (name) => {
    const found = ENCODINGS[`${name ?? "utf8"}`.toLowerCase()];
    if (found) return found;
    const error = new TypeError(`Unknown encoding: ${name}`);
    throw Object.assign(error, { code: "ERR_UNKNOWN_ENCODING" });
  };
  const SHORT = 64, ASCII = /^[\0-\x7f]*$/; // The host is quicker with long texts only.
  const bytesOf = (text, encoding) => {
    const name = encodingOf(encoding);
    if (name !== "utf8" || text.length > SHORT || !ASCII.test(text)) {
      return encode(name, text.toWellFormed());
    }
    const bytes = new Uint8Array(text.length);
    for (let at = 0; at < bytes.length; at++) bytes[at] = text.charCodeAt(at);
    return bytes;
  };
  const textOf = (bytes, encoding) => decode(encodingOf(encoding), bytes);
  const over = (bytes) => new Buffer(bytes.buffer, bytes.byteOffset, bytes.byteLength);

  class Buffer extends Uint8Array {
    static from(value, encoding, length) {
      if (typeof value === "string") return over(bytesOf(value, encoding));
      if (value instanceof ArrayBuffer) return new Buffer(value, encoding, length);
      if (value?.type === "Buffer" && Array.isArray(value.data)) return new Buffer(value.data);
      if (value !== null && typeof value === "object") return new Buffer(value);
      const text = "The first argument must be of type string or an instance of Buffer, " +
        "ArrayBuffer, or Array or an Array-like Object.";
      throw Object.assign(new TypeError(text), { code: "ERR_INVALID_ARG_TYPE" });
    }
    static alloc(size, value, encoding) {
      const made = new Buffer(size);
      return value === undefined ? made : made.fill(value, encoding);
    }
    static allocUnsafe(size) { return new Buffer(size); }
    static isBuffer(value) { return value instanceof Buffer; }
    static isEncoding(name) { return Object.hasOwn(ENCODINGS, `${name}`.toLowerCase()); }
    static byteLength(value, encoding) {
      return typeof value === "string" ? bytesOf(value, encoding).length : value.byteLength;
    }
    static concat(list, length = list.reduce((sum, one) => sum + one.length, 0)) {
      const whole = new Buffer(length);
      let at = 0;
      for (const one of list) {
        const part = one.subarray(0, length - at);
        whole.set(part, at);
        at += part.length;
      }
      return whole;
    }
    static compare(a, b) {
      const length = Math.min(a.length, b.length);
      for (let at = 0; at < length; at++) if (a[at] !== b[at]) return a[at] < b[at] ? -1 : 1;
      return Math.sign(a.length - b.length);
    }
    toString(encoding, start = 0, end = this.length) {
      return textOf(this.subarray(Math.max(start, 0), Math.max(end, 0)), encoding);
    }
    toJSON() { return { type: "Buffer", data: Array.from(this) }; }
    equals(other) { return Buffer.compare(this, other) === 0; }
    compare(other) { return Buffer.compare(this, other); }
    slice(start, end) { return this.subarray(start, end); }
    copy(target, at = 0, start = 0, end = this.length) {
      const part = this.subarray(start, Math.min(end, start + target.length - at));
      target.set(part, at);
      return part.length;
    }
    write(text, at = 0) {
      const part = bytesOf(text).subarray(0, this.length - at);
      this.set(part, at);
      return part.length;
    }
    fill(value, ...rest) {
      if (typeof value !== "string") return super.fill(value, ...rest);
      const bytes = bytesOf(value, rest.find((one) => typeof one === "string"));
      for (let at = 0; bytes.length && at < this.length; at++) this[at] = bytes[at % bytes.length];
      return this;
    }
  }
  return { Buffer, bytesOf, textOf };
}
