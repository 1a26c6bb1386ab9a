// The order of words in the locale `en`, for `localeCompare`: by letters, then by accents, then by
// case.
(part) => {
  const MARKS = " _‾-‐–—,;:!¡?¿.…·'‘’\"“”«»()[]{}§¶@*/\\&#%•`´^¯¨¸°©®+±÷×<=>¬|¦~";
  const COINS = "¤¢$£¥€";
  const LETTERS = "abcdđðefghħijklmnŋopqrstŧuvwxyzþ";
  const EXPANDED = { æ: "ae", œ: "oe", ß: "ss", ø: "o", ł: "l", ı: "i" };
  const ACCENTS = "\u0301\u0300\u0306\u0302\u030c\u030a\u0308\u030b\u0303\u0307/\u0327\u0328\u0304";
  const SIGN = 1000, COIN = 1900000, DIGIT = 2e6, LETTER = 2e6 + 1000, OTHER = 2e6 + 2000;
  const STROKE = String.fromCharCode(1 + ACCENTS.indexOf("/"));
  const weights = new Map();
  [...MARKS].forEach((char, at) => weights.set(char, 100 + at));
  [...COINS].forEach((char, at) => weights.set(char, COIN + at));
  [..."\t\n\v\f\r\u0085\u2028\u2029"].forEach((char, at) => weights.set(char, 1 + at));
  weights.set("\u00a0", 100);
  for (let n = 0; n < 10; n++) weights.set(String(n), DIGIT + n);
  [...LETTERS].forEach((char, at) => weights.set(char, LETTER + at));
  const plain = new Uint32Array(128);
  for (let code = 0; code < 128; code++) {
    plain[code] = weights.get(String.fromCharCode(code).toLowerCase()) ?? 0;
  }
  const isUpper = (code) => code >= 65 && code <= 90;

  const isPlain = (text, from) => {
    for (let at = from; at < text.length; at++) if (!plain[text.charCodeAt(at)]) return false;
    return true;
  };
  // Allocates nothing for plain words, because a sort compares many.
  const plainly = (a, b) => {
    const length = Math.min(a.length, b.length);
    let cased = 0;
    for (let at = 0; at < length; at++) {
      const x = a.charCodeAt(at), y = b.charCodeAt(at);
      if (x > 127 || y > 127) return undefined;
      const left = plain[x], right = plain[y];
      if (!left || !right) return undefined;
      if (left !== right) {
        return isPlain(a, at) && isPlain(b, at) ? [left < right ? -1 : 1, 0] : undefined;
      }
      if (!cased && x !== y) cased = isUpper(x) ? 1 : -1;
    }
    if (!isPlain(a, length) || !isPlain(b, length)) return undefined;
    return a.length === b.length ? [0, cased] : [a.length < b.length ? -1 : 1, 0];
  };
  // Compiling this set of characters is slow, and plain words do not need it.
  const sets = new Map();
  const is = (...kinds) => {
    const source = kinds.map((kind) => `\\p{${kind}}`).join("");
    if (!sets.has(source)) sets.set(source, new RegExp(`^[${source}]$`, "u"));
    return sets.get(source);
  };
  const elements = (text, numeric) => {
    const found = [];
    const parts = numeric ? text.normalize("NFD").match(/\d+|\D/gu) ?? []
      : text.normalize("NFD");
    for (const part of parts) {
      if (numeric && /^\d+$/.test(part)) {
        const digits = part.replace(/^0+(?=\d)/, "");
        found.push({ key: DIGIT, digits, accents: "", upper: 0 });
        continue;
      }
      if (is("M").test(part)) {
        const rank = ACCENTS.indexOf(part);
        if (found.length) found.at(-1).accents += rank < 0 ? part : String.fromCharCode(1 + rank);
        continue;
      }
      const small = part.toLowerCase();
      const upper = small === part ? 0 : 1;
      const letters = EXPANDED[small];
      for (const letter of letters ?? [small]) {
        const key = weights.get(letter) ?? (is("Cc", "Cf").test(letter) ? 0
          : letter.codePointAt(0) + (is("P", "S").test(letter) ? SIGN : OTHER));
        if (key) found.push({ key, digits: "", accents: letters ? STROKE : "", upper });
      }
    }
    return found;
  };
  const inFull = (a, b, numeric) => {
    const [left, right] = [elements(a, numeric), elements(b, numeric)];
    let accents = 0, cased = 0;
    for (let at = 0; at < Math.max(left.length, right.length); at++) {
      const [x, y] = [left[at], right[at]];
      if (!x || !y) return [x ? 1 : -1, 0, 0];
      if (x.key !== y.key) return [x.key < y.key ? -1 : 1, 0, 0];
      if (x.digits !== y.digits) {
        const longer = x.digits.length - y.digits.length;
        return [(longer || (x.digits < y.digits ? -1 : 1)) < 0 ? -1 : 1, 0, 0];
      }
      if (!accents && x.accents !== y.accents) accents = x.accents < y.accents ? -1 : 1;
      if (!cased) cased = Math.sign(x.upper - y.upper);
    }
    return [0, accents, cased];
  };
  const collation = (requested) => {
    const options = Object(requested ?? {}), { chosen } = part("locale");
    return {
      numeric: Boolean(options.numeric),
      level: chosen(options, "sensitivity", ["base", "accent", "case", "variant"], "variant"),
      first: chosen(options, "caseFirst", ["upper", "lower", "false"], "false"),
    };
  };
  const ordered = (a, b, { numeric, level, first }) => {
    if (a === b) return 0;
    const quick = numeric ? undefined : plainly(a, b);
    const [base, accents, cased] = quick ? [quick[0], 0, quick[1]] : inFull(a, b, numeric);
    if (base) return base;
    if (accents && (level === "accent" || level === "variant")) return accents;
    if (level !== "case" && level !== "variant") return 0;
    return first === "upper" ? -cased || 0 : cased;
  };
  const STANDARD = { numeric: false, level: "variant", first: "false" };
  const compare = (a, b, locales, options) => {
    if (locales !== undefined) part("locale").checked(locales);
    return ordered(a, b, options === undefined ? STANDARD : collation(options));
  };

  return { compare, collation, ordered };
}
