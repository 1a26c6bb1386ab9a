// `URL` and `URLSearchParams` by the URL standard, except for host names that are not ASCII.
() => {
  const PORTS =
    { "http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21", "file:": "" };
  const SPACES = /^[\0-\x20]+|[\0-\x20]+$/g;
  const UNSAFE = {
    userinfo: /[^\x21\x24-\x2e\x30-\x39\x41-\x5a\x5f\x61-\x7a\x7e%]/gu,
    path: /[^\x21\x24-\x3b\x3d\x40-\x5d\x5f\x61-\x7a\x7c\x7e%]|[?#]/gu,
    query: /[^\x21\x24-\x26\x28-\x3b\x3d\x3f-\x7e%]/gu,
    plainQuery: /[^\x21\x24-\x3b\x3d\x3f-\x7e%]/gu,
    fragment: /[^\x21\x23-\x3b\x3d\x3f-\x5f\x61-\x7e%]/gu,
  };
  const quoted = (text, unsafe) => text.replace(unsafe, (char) => {
    const point = char.codePointAt(0);
    if (point >= 0xd800 && point <= 0xdfff) return "%EF%BF%BD";
    return point < 0x80 ? `%${point.toString(16).toUpperCase().padStart(2, "0")}`
      : encodeURIComponent(char);
  });
  const invalid = (input) => {
    const error = new TypeError("Invalid URL");
    error.code = "ERR_INVALID_URL";
    error.input = input;
    return error;
  };

  // --- reading ---------------------------------------------------------------------------------

  const numberIn = (text) => {
    if (/^0x[0-9a-f]*$/i.test(text)) return parseInt(text.slice(2) || "0", 16);
    if (/^0[0-7]*$/.test(text)) return parseInt(text, 8);
    return /^\d+$/.test(text) ? Number(text) : NaN;
  };
  const address4 = (host) => {
    const parts = host.replace(/\.$/, "").split(".");
    if (!/^(\d+|0x[0-9a-f]*)$/i.test(parts.at(-1))) return host;
    const numbers = parts.map(numberIn);
    if (parts.length > 4 || numbers.some(Number.isNaN)) return null;
    const last = numbers.pop();
    if (numbers.some((part) => part > 255) || last >= 256 ** (4 - numbers.length)) return null;
    let value = last;
    numbers.forEach((part, at) => { value += part * 256 ** (3 - at); });
    return [24, 16, 8, 0].map((bits) => Math.floor(value / 2 ** bits) % 256).join(".");
  };
  const address6 = (text) => {
    let source = text;
    const old = /(?:^|:)(\d+\.\d+\.\d+\.\d+)$/.exec(source);
    if (old) {
      const bytes = old[1].split(".").map(Number);
      if (bytes.some((byte) => byte > 255)) return null;
      const pieces = [bytes[0] * 256 + bytes[1], bytes[2] * 256 + bytes[3]];
      const hex = pieces.map((piece) => piece.toString(16)).join(":");
      source = source.slice(0, -old[1].length) + hex;
    }
    const halves = source.split("::");
    if (halves.length > 2) return null;
    const [left, right = []] = halves.map((half) => (half ? half.split(":") : []));
    const missing = 8 - left.length - right.length;
    if (halves.length === 2 ? missing < 1 : missing !== 0) return null;
    const pieces = [...left, ...Array(halves.length === 2 ? missing : 0).fill("0"), ...right];
    if (pieces.some((piece) => !/^[0-9a-f]{1,4}$/i.test(piece))) return null;
    const short = pieces.map((piece) => parseInt(piece, 16).toString(16)).join(":");
    const zeros = [...short.matchAll(/(?:^|:)(0(?::0)+)(?=:|$)/g)];
    const longest = zeros.sort((a, b) => b[1].length - a[1].length)[0];
    if (!longest) return `[${short}]`;
    const end = longest.index + longest[0].length;
    const before = short.slice(0, longest.index), after = short.slice(end);
    return `[${before}::${after.slice(1)}]`;
  };
  const hostIn = (text, special) => {
    if (text.startsWith("[")) return text.endsWith("]") ? address6(text.slice(1, -1)) : null;
    if (!special) {
      return /[\0\t\n\r #/<>?@[\\\]^|:]/.test(text) ? null : quoted(text, UNSAFE.fragment);
    }
    let host;
    try { host = decodeURIComponent(text).toLowerCase(); } catch { return null; }
    if (!host || /[\0-\x20"#%/:<>?@[\\\]^`{|}\x7f-\u{10ffff}]/u.test(host)) return null;
    return address4(host);
  };
  const pathIn = (text, special, base, isFile) => {
    const parts = [...base];
    const segments = (special ? text.replace(/\\/g, "/") : text).split("/");
    segments.forEach((segment, at) => {
      const last = at === segments.length - 1;
      const dots = segment.replace(/%2e/gi, ".");
      if (dots === "..") {
        if (!(isFile && parts.length === 1 && /^[a-z]:$/i.test(parts[0]))) parts.pop();
        if (last) parts.push("");
      } else if (dots === ".") {
        if (last) parts.push("");
      } else parts.push(quoted(segment, UNSAFE.path));
    });
    return parts;
  };
  const authorityIn = (url, text) => {
    const at = text.lastIndexOf("@");
    if (at >= 0) {
      const [, name, word = ""] = /^([^:]*):?([^]*)$/.exec(text.slice(0, at));
      url.username = quoted(name, UNSAFE.userinfo);
      url.password = quoted(word, UNSAFE.userinfo);
    }
    const found = /^(\[[^\]]*\]|[^:]*)(?::(\d*))?$/.exec(text.slice(at + 1));
    if (!found) return false;
    const special = url.protocol in PORTS;
    if (url.protocol === "file:" && (found[2] !== undefined || at >= 0)) return false;
    url.host = !found[1] && (!special || url.protocol === "file:") ? "" : hostIn(found[1], special);
    if (url.host === null || (at >= 0 && !url.host)) return false;
    if (url.protocol === "file:" && url.host === "localhost") url.host = "";
    return portIn(url, found[2] ?? "");
  };
  const portIn = (url, text) => {
    if (Number(text) > 65535) return false;
    const port = text && String(Number(text));
    url.port = port === PORTS[url.protocol] ? "" : port;
    return true;
  };
  const parsed = (input, base) => {
    let text = `${input}`.replace(SPACES, "").replace(/[\t\n\r]/g, "");
    const url = { protocol: "", username: "", password: "", host: null, port: "", path: [],
      opaque: null, search: "", hash: "" };
    const hash = text.indexOf("#");
    const fragment = hash < 0 ? null : text.slice(hash + 1);
    if (hash >= 0) text = text.slice(0, hash);
    const scheme = /^([a-z][a-z0-9+.-]*):/i.exec(text);
    if (fragment !== null) url.hash = `#${quoted(fragment, UNSAFE.fragment)}`;
    if (scheme) {
      url.protocol = `${scheme[1].toLowerCase()}:`;
      text = text.slice(scheme[0].length);
    } else if (!base || (base.opaque !== null && !(text === "" && hash >= 0))) return null;
    else url.protocol = base.protocol;
    const special = url.protocol in PORTS;
    const mark = text.indexOf("?");
    const query = mark < 0 ? null : text.slice(mark + 1);
    if (mark >= 0) text = text.slice(0, mark);
    if (query !== null) url.search = `?${quoted(query, special ? UNSAFE.query : UNSAFE.plainQuery)}`;
    if (special) text = text.replace(/\\/g, "/");
    const relative = base && base.protocol === url.protocol && (!scheme || special);
    if (relative && !text.startsWith("//")) return resolved(url, text, query, base, special);
    return absolute(url, text, special);
  };
  const absolute = (url, text, special) => {
    if (text.startsWith("//") || (special && url.protocol !== "file:")) {
      const rest = special && url.protocol !== "file:" ? text.replace(/^\/*/, "") : text.slice(2);
      const slash = rest.indexOf("/");
      const authority = slash < 0 ? rest : rest.slice(0, slash);
      if (!authorityIn(url, authority)) return null;
      text = slash < 0 ? "" : rest.slice(slash);
    } else if (special) url.host = "";
    else if (!text.startsWith("/")) {
      url.opaque = text.replace(/[\0-\x1f\x7f-\u{10ffff}]/gu, (char) => quoted(char, /./gsu));
      return url;
    }
    if (text || special) {
      url.path = pathIn(text.replace(/^\//, ""), special, [], url.protocol === "file:");
    }
    return url;
  };
  const resolved = (url, text, query, base, special) => {
    for (const key of ["username", "password", "host", "port", "opaque"]) url[key] = base[key];
    const isFile = url.protocol === "file:";
    if (text.startsWith("/")) url.path = pathIn(text.slice(1), special, [], isFile);
    else if (text) url.path = pathIn(text, special, base.path.slice(0, -1), isFile);
    else {
      url.path = [...base.path];
      if (query === null) url.search = base.search;
    }
    return url;
  };

  // --- writing ---------------------------------------------------------------------------------

  const pathOf = (url) => url.opaque ?? (url.path.length ? `/${url.path.join("/")}` : "");
  const hostOf = (url) => (url.host ?? "") + (url.port && `:${url.port}`);
  const originOf = (url) => (url.protocol in PORTS && url.protocol !== "file:"
    ? `${url.protocol}//${hostOf(url)}` : "null");
  const written = (url) => {
    const user = url.username + (url.password && `:${url.password}`);
    const where = url.host === null ? (url.path[0] === "" && url.path.length > 1 ? "/." : "")
      : `//${user && `${user}@`}${hostOf(url)}`;
    return url.protocol + where + pathOf(url) + url.search + url.hash;
  };

  const shown = (part) => (part.length > 1 ? part : "");

  const plus = (text) => decodeLoosely(text.replace(/\+/g, " "));
  const decodeLoosely = (text) => text.replace(/(?:%[0-9a-f]{2})+/gi, (run) => {
    try { return decodeURIComponent(run); } catch { return run.replace(/%[89a-f].|%../gi, single); }
  });
  const single = (one) => {
    try { return decodeURIComponent(one); } catch { return "\ufffd"; }
  };
  const formed = (text) => encodeURIComponent(`${text}`.toWellFormed()).replace(/%20/g, "+")
    .replace(/[!'()~]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
  const pairsIn = (text) => text.split("&").filter(Boolean).map((pair) => {
    const [, name, value = ""] = /^([^=]*)=?([^]*)$/.exec(pair);
    return [plus(name), plus(value)];
  });
  const joined = (pairs) =>
    pairs.map(([name, value]) => `${formed(name)}=${formed(value)}`).join("&");

  let linked = null;
  class URLSearchParams {
    #pairs; #changed = linked;
    constructor(init = "") {
      if (init === null || (typeof init !== "object" && typeof init !== "function")) {
        this.#pairs = pairsIn(`${init}`.replace(/^\?/, ""));
      } else if (init[Symbol.iterator]) {
        this.#pairs = [...init].map((pair) => {
          const [name, value, ...more] = pair;
          if (more.length || [...pair].length !== 2) {
            throw new TypeError("Each query pair must be an iterable [name, value] tuple");
          }
          return [`${name}`, `${value}`];
        });
      } else this.#pairs = Object.entries(init).map(([name, value]) => [name, `${value}`]);
    }
    #set(pairs) { this.#pairs = pairs; this.#changed?.(joined(pairs)); }
    get size() { return this.#pairs.length; }
    append(name, value) { this.#set([...this.#pairs, [`${name}`, `${value}`]]); }
    delete(name, value) {
      this.#set(this.#pairs.filter(([key, kept]) => key !== `${name}` ||
        (value !== undefined && kept !== `${value}`)));
    }
    get(name) { return this.#pairs.find(([key]) => key === `${name}`)?.[1] ?? null; }
    getAll(name) {
      return this.#pairs.filter(([key]) => key === `${name}`).map(([, value]) => value);
    }
    has(name, value) {
      return this.#pairs.some(([key, kept]) => key === `${name}` &&
        (value === undefined || kept === `${value}`));
    }
    set(name, value) {
      const at = this.#pairs.findIndex(([key]) => key === `${name}`);
      if (at < 0) return this.append(name, value);
      const rest = this.#pairs.filter(([key], place) => place <= at || key !== `${name}`);
      rest[at] = [`${name}`, `${value}`];
      this.#set(rest);
    }
    sort() { this.#set(this.#pairs.toSorted(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0))); }
    forEach(action, self) {
      for (const [name, value] of this.#pairs) action.call(self, value, name, this);
    }
    *entries() { for (const [name, value] of this.#pairs) yield [name, value]; }
    *keys() { for (const [name] of this.#pairs) yield name; }
    *values() { for (const [, value] of this.#pairs) yield value; }
    [Symbol.iterator]() { return this.entries(); }
    toString() { return joined(this.#pairs); }
  }

  class URL {
    #url; #params = null;
    constructor(input, base) {
      const from = base === undefined ? null : parsed(base, null);
      const url = base !== undefined && !from ? null : parsed(input, from);
      if (!url) throw invalid(`${input}`);
      this.#url = url;
    }
    static canParse(input, base) {
      const from = base === undefined ? null : parsed(base, null);
      return (base === undefined || from !== null) && parsed(input, from) !== null;
    }
    static parse(input, base) { return URL.canParse(input, base) ? new URL(input, base) : null; }
    #changed() { this.#params = null; }
    get href() { return written(this.#url); }
    set href(text) {
      const url = parsed(text, null);
      if (!url) throw invalid(`${text}`);
      this.#url = url;
      this.#changed();
    }
    get origin() { return originOf(this.#url); }
    get protocol() { return this.#url.protocol; }
    set protocol(text) {
      const found = /^([a-z][a-z0-9+.-]*):?/i.exec(`${text}`)?.[1].toLowerCase();
      if (!found || (`${found}:` in PORTS) !== (this.#url.protocol in PORTS)) return;
      this.#url.protocol = `${found}:`;
      if (this.#url.port === PORTS[this.#url.protocol]) this.#url.port = "";
    }
    get username() { return this.#url.username; }
    set username(text) {
      if (this.#url.host) this.#url.username = quoted(`${text}`, UNSAFE.userinfo);
    }
    get password() { return this.#url.password; }
    set password(text) {
      if (this.#url.host) this.#url.password = quoted(`${text}`, UNSAFE.userinfo);
    }
    get host() { return hostOf(this.#url); }
    set host(text) {
      const [, name, port] = /^(\[[^\]]*\]|[^:/?#]*):?(\d*)/.exec(`${text}`);
      this.hostname = name;
      if (port) this.port = port;
    }
    get hostname() { return this.#url.host ?? ""; }
    set hostname(text) {
      if (this.#url.opaque !== null) return;
      const host = hostIn(`${text}`.replace(/[/?#][^]*$/, ""), this.#url.protocol in PORTS);
      if (host) this.#url.host = host;
    }
    get port() { return this.#url.port; }
    set port(text) {
      if (this.#url.host && this.#url.protocol !== "file:") {
        const digits = /^\d*/.exec(`${text}`)[0];
        if (digits || `${text}` === "") portIn(this.#url, digits);
      }
    }
    get pathname() { return pathOf(this.#url); }
    set pathname(text) {
      if (this.#url.opaque !== null) return;
      const special = this.#url.protocol in PORTS;
      const path = `${text}`.replace(special ? /^[/\\]/ : /^\//, "");
      this.#url.path = pathIn(path, special, [], this.#url.protocol === "file:");
    }
    get search() { return shown(this.#url.search); }
    set search(text) {
      const query = `${text}`.replace(/^\?/, "");
      const unsafe = this.#url.protocol in PORTS ? UNSAFE.query : UNSAFE.plainQuery;
      this.#url.search = query && `?${quoted(query, unsafe)}`;
      this.#changed();
    }
    get searchParams() {
      if (!this.#params) {
        linked = (query) => { this.#url.search = query && `?${query}`; };
        try { this.#params = new URLSearchParams(this.#url.search); } finally { linked = null; }
      }
      return this.#params;
    }
    get hash() { return shown(this.#url.hash); }
    set hash(text) {
      const fragment = `${text}`.replace(/^#/, "");
      this.#url.hash = fragment && `#${quoted(fragment, UNSAFE.fragment)}`;
    }
    toString() { return this.href; }
    toJSON() { return this.href; }
  }
  for (const Class of [URL, URLSearchParams]) {
    Object.defineProperty(Class.prototype, Symbol.toStringTag,
      { value: Class.name, configurable: true });
  }
  return { URL, URLSearchParams };
}
