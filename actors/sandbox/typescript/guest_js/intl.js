// `Intl` for the locale `en`.
(part) => {
  const { checked, chosen, numberOptions, numeral, number, dateOptions, moment } = part("locale");
  const { collation, ordered } = part("order");
  const supportedLocalesOf = (locales) => [locales ?? []].flat()
    .filter((name) => /^en(-US)?$/i.test(String(name)));
  const callable = (Class) => {
    Class.supportedLocalesOf = supportedLocalesOf;
    Object.defineProperty(Class.prototype, Symbol.toStringTag,
      { value: `Intl.${Class.name}`, configurable: true });
    return new Proxy(Class, { apply: (made, _, args) => new made(...args) });
  };
  class NumberFormat {
    #locale; #settings;
    constructor(locales, options) {
      this.#locale = checked(locales);
      this.#settings = numberOptions(Object(options ?? {}));
      const value = (n) => numeral(typeof n === "bigint" ? n : Number(n), this.#settings);
      Object.defineProperty(this, "format", { value });
    }
    resolvedOptions() {
      const { style, currency, notation, low, high } = this.#settings;
      return {
        locale: this.#locale, numberingSystem: "latn", style, ...(currency && { currency }),
        minimumFractionDigits: low, maximumFractionDigits: high, notation,
      };
    }
  }
  class DateTimeFormat {
    #locale; #settings;
    constructor(locales, options) {
      this.#locale = checked(locales);
      this.#settings = dateOptions(options, "any", "date");
      const value = (date) => {
        const when = date === undefined ? new Date() : new Date(date);
        if (Number.isNaN(when.getTime())) throw new RangeError("Invalid time value");
        return moment(when, this.#settings);
      };
      Object.defineProperty(this, "format", { value });
    }
    resolvedOptions() {
      const locale = this.#locale;
      return { locale, calendar: "gregory", numberingSystem: "latn", timeZone: "UTC" };
    }
  }
  class Collator {
    #locale; #settings;
    constructor(locales, options) {
      this.#locale = checked(locales);
      this.#settings = collation(options);
      const value = (a, b) => ordered(String(a), String(b), this.#settings);
      Object.defineProperty(this, "compare", { value });
    }
    resolvedOptions() {
      const { numeric, level, first } = this.#settings;
      return { locale: this.#locale, usage: "sort", sensitivity: level, numeric, caseFirst: first };
    }
  }
  class PluralRules {
    #ordinal;
    constructor(locales, options) {
      checked(locales);
      this.#ordinal = chosen(Object(options ?? {}), "type", ["cardinal", "ordinal"]) === "ordinal";
    }
    select(value) {
      const n = Math.abs(Number(value));
      if (!this.#ordinal) return n === 1 ? "one" : "other";
      const teen = n % 100 >= 11 && n % 100 <= 13;
      return teen ? "other" : { 1: "one", 2: "two", 3: "few" }[n % 10] ?? "other";
    }
  }
  class ListFormat {
    #word; #narrow;
    constructor(locales, options) {
      checked(locales);
      const settings = Object(options ?? {});
      const type = chosen(settings, "type", ["conjunction", "disjunction", "unit"], "conjunction");
      const style = chosen(settings, "style", ["long", "short", "narrow"], "long");
      this.#narrow = type === "unit" && style === "narrow";
      const and = { long: "and", short: "&", narrow: "" }[style];
      this.#word = { conjunction: and, disjunction: "or", unit: "" }[type];
    }
    format(list) {
      const items = [...list], word = this.#word, comma = this.#narrow ? " " : ", ";
      if (items.length < 2 || !word) return items.join(comma);
      const last = items.pop();
      return `${items.join(", ")}${items.length > 1 ? "," : ""} ${word} ${last}`;
    }
  }
  class RelativeTimeFormat {
    #auto;
    constructor(locales, options) {
      checked(locales);
      this.#auto = chosen(Object(options ?? {}), "numeric", ["always", "auto"]) === "auto";
    }
    format(value, unit) {
      const n = Number(value), name = String(unit).replace(/s$/, "");
      if (!/^(second|minute|hour|day|week|month|quarter|year)$/.test(name)) {
        throw new RangeError(`Invalid unit argument for format() '${String(unit)}'`);
      }
      const past = n < 0 || Object.is(n, -0);
      if (this.#auto && Math.abs(n) <= 1 && Number.isInteger(n)) {
        if (name === "day") return past && n ? "yesterday" : n ? "tomorrow" : "today";
        if (name === "second" && n === 0) return "now";
        if (n === 0) return `this ${name}`;
        if (!/^(second|minute|hour)$/.test(name)) return `${past ? "last" : "next"} ${name}`;
      }
      const text = `${number(Math.abs(n))} ${name}${Math.abs(n) === 1 ? "" : "s"}`;
      return past ? `${text} ago` : `in ${text}`;
    }
  }
  const Intl = { getCanonicalLocales: (locales) => [locales ?? []].flat().map(String) };
  const classes =
    [NumberFormat, DateTimeFormat, Collator, PluralRules, ListFormat, RelativeTimeFormat];
  for (const made of classes) {
    const value = callable(made);
    Object.defineProperty(Intl, made.name, { value, writable: true, configurable: true });
  }
  Object.defineProperty(Intl, Symbol.toStringTag, { value: "Intl", configurable: true });
  return { Intl };
}
