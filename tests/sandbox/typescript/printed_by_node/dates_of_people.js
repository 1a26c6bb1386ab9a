const when = new Date(Date.UTC(2026, 0, 5, 15, 4, 9, 7));console.log([when.toLocaleString(), when.toLocaleDateString(), when.toLocaleTimeString()].join(" | "))
for (const o of [{ dateStyle: "full" }, { dateStyle: "long", timeStyle: "short" }, { dateStyle: "medium" }, { dateStyle: "short", timeStyle: "medium" },
  { weekday: "long", year: "numeric", month: "long", day: "numeric" }, { month: "short", day: "numeric" }, { year: "numeric", month: "2-digit", day: "2-digit" },
  { month: "long", year: "numeric" }, { weekday: "short" }, { hour: "numeric", minute: "2-digit" }, { hour: "2-digit", minute: "2-digit", hour12: false },
  { year: "numeric", month: "short", day: "numeric", hour: "numeric", minute: "2-digit", timeZone: "UTC", timeZoneName: "short" }]) {
  console.log(when.toLocaleString("en-US", o), "|", new Intl.DateTimeFormat("en-US", o).format(when))
}
console.log(when.toLocaleDateString("en-US", { month: "long" }), when.toLocaleTimeString(undefined, { timeStyle: "short" }), new Date(NaN).toLocaleString())
console.log(String(when), when.toTimeString(), when.toDateString(), `${new Date(NaN)}`, when + 1)
