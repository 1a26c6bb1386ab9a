// Pyodide in Node.js: 1,000 host calls. `node pyodide_program.mjs CONFIG`, then lines of requests.
import { createInterface } from "node:readline";
import { createRequire } from "node:module";

const { code, modules } = JSON.parse(process.argv[2]);
const { loadPyodide } = createRequire(`${modules}/package.json`)("pyodide");
const python = await loadPyodide();
python.globals.set("add", (...numbers) => numbers.reduce((a, b) => a + b));
const now = () => Number(process.hrtime.bigint()) / 1e6;
console.log(JSON.stringify({ ready: true }));
for await (const line of createInterface({ input: process.stdin })) {
  const { count } = JSON.parse(line);
  const taken = [];
  for (let i = 0; i <= count; i++) {
    const begun = now();
    python.runPython(code);
    taken.push(now() - begun);
  }
  const sorted = taken.slice(1).sort((a, b) => a - b);
  const p50 = sorted[Math.floor(count / 2)];
  console.log(JSON.stringify({ done: count, seconds: 1, p50_ms: p50, p99_ms: sorted.at(-1) }));
}
