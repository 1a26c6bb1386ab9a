// Formats numbers and dates for the locale `en` in UTC. Evaluated when a program first needs it.
// Another locale or time zone is refused.
() => {
  const HARD = "\u00a0";

  // --- options ---------------------------------------------------------------------------------

  const checked = (locales) => {
    const wanted = locales === undefined ? [] : Array.isArray(locales) ? locales : [locales];
    for (const name of wanted) {
      if (typeof name !== "string" && !(name instanceof Object)) {
        throw new TypeError("Incorrect locale information provided");
      }
      if (!/^en(-US)?(-u-.*)?$/i.test(String(name))) {
        throw new RangeError(`the locale ${String(name)} is not available here: en and en-US are`);
      }
      break;
    }
    return wanted.length && String(wanted[0]).toLowerCase() === "en" ? "en" : "en-US";
  };
  const chosen = (options, name, values, standard) => {
    const value = options[name];
    if (value === undefined) return standard;
    if (values && !values.includes(String(value))) {
      throw new RangeError(`Value ${String(value)} out of range for Intl options property ${name}`);
    }
    return String(value);
  };
  const count = (options, name, least, most, standard) => {
    const value = options[name];
    if (value === undefined) return standard;
    const number = Math.floor(Number(value));
    if (number >= least && number <= most) return number;
    throw new RangeError(`${name} value is out of range.`);
  };

  // --- numbers ---------------------------------------------------------------------------------

  const SYMBOLS = {
    USD: "$", EUR: "€", GBP: "£", JPY: "¥", INR: "₹", CNY: "CN¥", KRW: "₩", CAD: "CA$",
    AUD: "A$", MXN: "MX$", BRL: "R$", NZD: "NZ$", HKD: "HK$", TWD: "NT$", ILS: "₪", VND: "₫", PHP: "₱",
  };
  const CURRENCIES = {
    USD: ["US dollar"], EUR: ["euro"], GBP: ["British pound"], JPY: ["Japanese yen", ""],
    INR: ["Indian rupee"], CNY: ["Chinese yuan", ""], CHF: ["Swiss franc"],
    CAD: ["Canadian dollar"], AUD: ["Australian dollar"], KRW: ["South Korean won", ""],
    MXN: ["Mexican peso"], BRL: ["Brazilian real"],
  };
  const WHOLE = ["JPY", "KRW", "VND", "CLP", "ISK", "XAF", "XOF", "PYG", "UGX"];
  const UNITS = {
    kilometer: "km", meter: "m", centimeter: "cm", millimeter: "mm", mile: "mi", foot: "ft",
    inch: "in", yard: "yd", kilogram: "kg", gram: "g", pound: "lb", ounce: "oz", liter: "L",
    milliliter: "mL", second: "sec", minute: "min", hour: "hr", day: "day", week: "wk",
    month: "mth", year: "yr", millisecond: "ms", byte: "byte", kilobyte: "kB", megabyte: "MB",
    gigabyte: "GB", terabyte: "TB", bit: "bit", percent: "%", celsius: "°C", fahrenheit: "°F",
    degree: "deg", acre: "ac",
  };
  const PLURAL = new Set(["day", "week", "month", "year"]);
  const LARGE =
    [["", ""], ["K", "thousand"], ["M", "million"], ["B", "billion"], ["T", "trillion"]];

  // The shortest digits of the number, and the position of its point.
  const decimal = (value) => {
    const [mantissa, exponent = "0"] = String(value).replace(/^-/, "").split("e");
    const [whole, part = ""] = mantissa.split(".");
    return trimmed(whole + part, whole.length + Number(exponent));
  };
  const trimmed = (digits, point) => {
    const zeros = /^0*/.exec(digits)[0].length;
    const kept = digits.slice(zeros).replace(/0+$/, "");
    return { digits: kept, point: kept ? point - zeros : 0 };
  };
  // Rounds a half away from zero.
  const rounded = ({ digits, point }, places) => {
    const end = point + places;
    if (end >= digits.length) return { digits, point };
    if (end < 0) return { digits: "", point: 0 };
    const up = digits[end] >= "5";
    const kept = `0${digits.slice(0, end)}`;
    const more = up ? (BigInt(kept) + 1n).toString().padStart(kept.length, "0") : kept;
    return trimmed(more, point + 1);
  };
  const spelled = ({ digits, point }, least, most) => {
    const whole = point > 0 ? digits.slice(0, point).padEnd(point, "0") : "";
    const part = (point < 0 ? "0".repeat(-point) : "") + digits.slice(Math.max(point, 0));
    return [whole.padStart(least, "0"), part.padEnd(most, "0")];
  };
  const numberOptions = (options) => {
    const style = chosen(options, "style", ["decimal", "percent", "currency", "unit"], "decimal");
    const currency = options.currency === undefined ? "" : String(options.currency).toUpperCase();
    if (style === "currency" && !/^[A-Z]{3}$/.test(currency)) {
      if (!currency) throw new TypeError("Currency code is required with currency style.");
      throw new RangeError(`Invalid currency code : ${currency}`);
    }
    const unit = chosen(options, "unit", undefined, "");
    if (style === "unit" && !unit) throw new TypeError("Unit is required with unit style.");
    if (style === "unit" && unit.split("-per-").some((name) => !(name in UNITS))) {
      throw new RangeError(`Invalid unit argument for Intl.NumberFormat() '${unit}'`);
    }
    const notation = chosen(
      options, "notation", ["standard", "scientific", "engineering", "compact"], "standard");
    const places = style === "currency" ? (WHOLE.includes(currency) ? 0 : 2) : 0;
    const top = style === "currency" ? places : style === "percent" ? 0 : 3;
    const ask = (name, least, most) => count(options, name, least, most, undefined);
    let low = ask("minimumFractionDigits", 0, 100), high = ask("maximumFractionDigits", 0, 100);
    const free = low === undefined && high === undefined;
    if (low === undefined) low = Math.min(places, high ?? places);
    if (high === undefined) high = Math.max(low, top);
    if (low > high) throw new RangeError("maximumFractionDigits value is out of range.");
    const short = ask("minimumSignificantDigits", 1, 21);
    const long = ask("maximumSignificantDigits", 1, 21);
    if (short > long) throw new RangeError("maximumSignificantDigits value is out of range.");
    return {
      style, currency, unit, notation, low, high, short, long,
      free: free && short === undefined && long === undefined,
      whole: count(options, "minimumIntegerDigits", 1, 21, 1),
      display: chosen(options, "currencyDisplay", undefined, "symbol"),
      unitDisplay: chosen(options, "unitDisplay", ["short", "long", "narrow"], "short"),
      compact: chosen(options, "compactDisplay", ["short", "long"], "short"),
      sign: chosen(options, "signDisplay",
        ["auto", "always", "never", "exceptZero", "negative"], "auto"),
      brackets: chosen(options, "currencySign", ["standard", "accounting"], "standard"),
      groups: options.useGrouping === undefined ? (notation === "compact" ? "min2" : "auto")
        : options.useGrouping === "false" ? "auto" : options.useGrouping,
    };
  };
  const fitted = (number, settings) => {
    if (settings.short !== undefined || settings.long !== undefined) {
      const { short = 1, long = 21 } = settings;
      const fit = rounded(number, long - number.point);
      return [fit, Math.max(short - (fit.digits ? fit.point : 1), 0)];
    }
    if (settings.notation === "compact" && settings.free) {
      return [rounded(number, Math.max(0, 2 - number.point)), 0];
    }
    return [rounded(number, settings.high), settings.low];
  };
  const grouped = (whole, groups) => {
    if (groups === false || (groups === "min2" && whole.length < 5)) return whole;
    return whole.replace(/\B(?=(\d{3})+$)/g, ",");
  };
  const scaled = (number, settings) => {
    if (settings.notation === "standard" || !number.digits) return [number, "", 0];
    const power = number.point - 1;
    if (settings.notation === "compact") {
      let step = Math.min(Math.max(Math.floor(power / 3), 0), 4);
      let moved = { ...number, point: number.point - step * 3 };
      if (step < 4 && fitted(moved, settings)[0].point > 3) {
        step++;
        moved = { ...number, point: number.point - step * 3 };
      }
      const [short, long] = LARGE[step];
      return [moved, settings.compact === "long" && long ? ` ${long}` : short, 0];
    }
    const isScientific = settings.notation === "scientific";
    const size = (power) => (isScientific ? power : Math.floor(power / 3) * 3);
    const fit = fitted({ ...number, point: number.point - size(power) }, settings)[0];
    const step = size(fit.point + size(power) - 1);
    return [{ ...number, point: number.point - step }, `E${step}`, step];
  };
  const bare = (value, settings) => {
    if (typeof value === "number" && !Number.isFinite(value)) {
      return [Number.isNaN(value) ? "NaN" : "∞", false, !Number.isNaN(value)];
    }
    const number = decimal(value);
    if (settings.style === "percent" && number.digits) number.point += 2;
    const [moved, suffix] = scaled(number, settings);
    const [fit, least] = fitted(moved, settings);
    const [whole, part] = spelled(fit, settings.whole, least);
    const empty = settings.notation !== "standard" && !suffix && !number.digits
      && settings.notation !== "compact" ? "E0" : suffix;
    return [grouped(whole, settings.groups) + (part ? `.${part}` : "") + empty, !fit.digits, true];
  };
  const withUnit = (text, settings) => {
    const one = text === "1";
    const name = (unit, many) => {
      if (unit === "celsius" || unit === "fahrenheit") {
        return `degree${many ? "s" : ""} ${unit[0].toUpperCase()}${unit.slice(1)}`;
      }
      if (unit === "foot") return many ? "feet" : unit;
      if (unit === "inch") return many ? "inches" : unit;
      return many && unit !== "percent" ? `${unit}s` : unit;
    };
    const [unit, per] = settings.unit.split("-per-");
    if (settings.unitDisplay === "long") {
      return `${text} ${name(unit, !one)}${per ? ` per ${name(per, false)}` : ""}`;
    }
    if (settings.unit === "kilometer-per-hour") return `${text} km/h`;
    if (settings.unit === "mile-per-hour") return `${text} mph`;
    const short = `${UNITS[unit]}${PLURAL.has(unit) && !one ? "s" : ""}`;
    const glued = /^[%°]/.test(short) ? "" : " ";
    const second = { second: "s", hour: "h", minute: "min", day: "d" };
    return `${text}${glued}${short}${per ? `/${second[per] ?? UNITS[per]}` : ""}`;
  };
  const numeral = (value, settings) => {
    const negative = typeof value === "bigint" ? value < 0n : value < 0 || Object.is(value, -0);
    const [text, zero] = bare(value, settings);
    const signs = settings.sign;
    const shown = signs === "never" ? "" : negative
      ? ((signs === "exceptZero" || signs === "negative") && zero ? "" : "-")
      : (signs === "always" && !Number.isNaN(value)) ||
        (signs === "exceptZero" && !zero && !Number.isNaN(value)) ? "+" : "";
    if (settings.style === "percent") return `${shown}${text}%`;
    if (settings.style === "unit") return shown + withUnit(text, settings);
    if (settings.style !== "currency") return shown + text;
    if (settings.display === "name") {
      const [name, ending = "s"] = CURRENCIES[settings.currency] ?? [settings.currency, ""];
      return `${shown}${text} ${name}${text === "1" ? "" : ending}`;
    }
    const { display } = settings;
    const code = display === "code" ? settings.currency : display === "narrowSymbol"
      ? (SYMBOLS[settings.currency] ?? settings.currency).replace(/^[A-Z]+(?=[^A-Z])/, "")
      : SYMBOLS[settings.currency] ?? settings.currency;
    const money = `${code}${/[A-Z]$/.test(code) ? HARD : ""}${text}`;
    if (settings.brackets === "accounting" && shown === "-") return `(${money})`;
    return shown + money;
  };
  const number = (value, locales, options) => {
    checked(locales);
    return numeral(value, numberOptions(Object(options ?? {})));
  };

  // --- dates -----------------------------------------------------------------------------------

  const DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split(" ");
  const MONTHS = ("January February March April May June July August September October November " +
    "December").split(" ");
  const DATE = ["weekday", "year", "month", "day"];
  const TIME = ["hour", "minute", "second", "fractionalSecondDigits"];
  const STYLES = ["full", "long", "medium", "short"];
  const dateOptions = (requested, needed, standard) => {
    const options = Object(requested ?? {});
    const zone = chosen(options, "timeZone", undefined, "UTC");
    if (!/^(utc|gmt|etc\/(utc|gmt)|[+-]00:?00)$/i.test(zone)) {
      throw new RangeError(`the time zone ${zone} is not available here: only UTC is`);
    }
    const settings = { dateStyle: chosen(options, "dateStyle", STYLES), timeStyle:
      chosen(options, "timeStyle", STYLES), zone: chosen(options, "timeZoneName"),
      hour12: options.hour12, cycle: chosen(options, "hourCycle", ["h11", "h12", "h23", "h24"]) };
    for (const name of [...DATE, ...TIME]) settings[name] = chosen(options, name);
    if (settings.dateStyle || settings.timeStyle) {
      for (const name of [...DATE, ...TIME, "zone"]) {
        if (settings[name] !== undefined) {
          const style = settings.dateStyle ? "dateStyle" : "timeStyle";
          throw new TypeError(`Can't set option ${name} when ${style} is used`);
        }
      }
      if ((needed === "date" && settings.timeStyle) || (needed === "time" && settings.dateStyle)) {
        throw new TypeError(`Invalid option : ${needed === "date" ? "timeStyle" : "dateStyle"}`);
      }
      return settings;
    }
    const some = (names) => names.some((name) => settings[name] !== undefined);
    const lacks = needed === "date" ? !some(DATE) : needed === "time" ? !some(TIME)
      : !some([...DATE, ...TIME]);
    if (lacks && standard !== "time") settings.year = settings.month = settings.day = "numeric";
    if (lacks && standard !== "date") {
      settings.hour = "numeric";
      settings.minute = settings.second = "2-digit";
    }
    return settings;
  };
  const two = (value) => String(value).padStart(2, "0");
  const sized = (value, size) => (size === "2-digit" ? two(value % 100) : String(value));
  const dateText = (date, { weekday, year, month, day }) => {
    const named = { long: (word) => word, short: (word) => word.slice(0, 3), narrow: ([c]) => c };
    const on = weekday && (named[weekday] ?? named.long)(DAYS[date.getUTCDay()]);
    const y = year && sized(date.getUTCFullYear(), year);
    const d = day && sized(date.getUTCDate(), day);
    if (month && !named[month]) {
      const m = sized(date.getUTCMonth() + 1, month);
      const text = [m, d, y].filter(Boolean).join("/");
      return on ? (d ? `${on}, ${text}` : `${text} ${on}`) : text;
    }
    const m = month && named[month](MONTHS[date.getUTCMonth()]);
    if (m) {
      const text = [m, d].filter(Boolean).join(" ") + (y ? `${d ? "," : ""} ${y}` : "");
      return on ? (d ? `${on}, ${text}` : `${text} ${on}`) : text;
    }
    if (y && d) return `${y} (day: ${d})${on ? ` ${on}` : ""}`;
    return [y ?? d, on].filter(Boolean).join(" ");
  };
  const timeText = (date, settings) => {
    const { hour, minute, second, fractionalSecondDigits: parts, hour12, cycle, zone } = settings;
    const counts = hour12 === undefined ? cycle ?? "h12" : hour12 ? "h12" : "h24";
    const half = counts === "h12" || counts === "h11";
    const h = date.getUTCHours(), lonely = minute === undefined && second === undefined;
    const fields = [];
    if (hour) {
      const shown = half ? (counts === "h11" ? h % 12 : h % 12 || 12)
        : counts === "h24" && h === 0 ? 24 : h;
      fields.push(hour === "2-digit" || !half ? two(shown) : String(shown));
    }
    if (minute) fields.push(hour || second ? two(date.getUTCMinutes()) : `${date.getUTCMinutes()}`);
    if (second) fields.push(hour || minute ? two(date.getUTCSeconds()) : `${date.getUTCSeconds()}`);
    let text = fields.join(":");
    if (parts) {
      const digits = String(date.getUTCMilliseconds()).padStart(3, "0").slice(0, Number(parts));
      text += text ? `.${digits}` : digits;
    }
    if (hour && half) text += ` ${h < 12 ? "AM" : "PM"}`;
    if (!zone) return text;
    const name = zone === "long" ? "Coordinated Universal Time" : "UTC";
    return lonely && !text ? name : `${text} ${name}`;
  };
  const STYLED = {
    full: { weekday: "long", year: "numeric", month: "long", day: "numeric" },
    long: { year: "numeric", month: "long", day: "numeric" },
    medium: { year: "numeric", month: "short", day: "numeric" },
    short: { year: "2-digit", month: "numeric", day: "numeric" },
  };
  const TIMED = {
    full: { hour: "numeric", minute: "2-digit", second: "2-digit", zone: "long" },
    long: { hour: "numeric", minute: "2-digit", second: "2-digit", zone: "short" },
    medium: { hour: "numeric", minute: "2-digit", second: "2-digit" },
    short: { hour: "numeric", minute: "2-digit" },
  };
  const moment = (date, settings) => {
    if (Number.isNaN(date.getTime())) return "Invalid Date";
    const { dateStyle, timeStyle, hour12, cycle } = settings;
    if (dateStyle || timeStyle) {
      const on = dateStyle && dateText(date, STYLED[dateStyle]);
      const at = timeStyle && timeText(date, { ...TIMED[timeStyle], hour12, cycle });
      if (!on || !at) return on ?? at;
      return `${on}${dateStyle === "full" || dateStyle === "long" ? " at " : ", "}${at}`;
    }
    const on = DATE.some((name) => settings[name]) ? dateText(date, settings) : "";
    const hasTime = TIME.some((name) => settings[name]);
    const at = hasTime || settings.zone ? timeText(date, settings) : "";
    if (!on || !at) return on || at;
    const dated = settings.year || settings.month || settings.day;
    const joint = hasTime && settings.month === "long" ? " at " : dated ? ", " : " ";
    return `${on}${joint}${at}`;
  };
  const date = (value, needed, standard, locales, options) => {
    if (Number.isNaN(value.getTime())) return "Invalid Date";
    checked(locales);
    return moment(value, dateOptions(options, needed, standard));
  };

  return { checked, chosen, numberOptions, numeral, number, dateOptions, moment, date };
}
