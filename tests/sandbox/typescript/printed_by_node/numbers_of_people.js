const n = [0, -0, 1, -1234.5, 1234567.891, 0.5, 1e21, 1e-7, NaN, -Infinity, 999.995, 12345678901234567890n]
console.log(n.map((x) => x.toLocaleString()).join(" | "))
for (const o of [{ maximumFractionDigits: 0 }, { minimumFractionDigits: 2, maximumFractionDigits: 2 }, { style: "percent" },
  { style: "currency", currency: "USD" }, { style: "currency", currency: "JPY" }, { style: "currency", currency: "EUR", maximumFractionDigits: 0 },
  { notation: "compact" }, { notation: "compact", compactDisplay: "long" }, { maximumSignificantDigits: 3 }, { useGrouping: false },
  { minimumIntegerDigits: 3 }, { style: "unit", unit: "kilometer-per-hour" }, { notation: "scientific" }, { signDisplay: "exceptZero" },
  { style: "currency", currency: "USD", currencySign: "accounting" }]) console.log(n.slice(0, 7).map((x) => x.toLocaleString("en-US", o)).join(" | "))
console.log(new Intl.NumberFormat("en-US", { style: "currency", currency: "GBP" }).format(5), [1234.5, 2].toLocaleString())
