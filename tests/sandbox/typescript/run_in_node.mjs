// Runs the runs of one program in node: reads [path of the TypeScript compiler, [run]] from stdin,
// writes [[value, stdout]]. Names of one run are there in the next.
import { Console } from "node:console";
import { createRequire } from "node:module";
import { text } from "node:stream/consumers";
import { Writable } from "node:stream";
import { runInThisContext } from "node:vm";

const [compiler, runs] = JSON.parse(await text(process.stdin));
const ts = createRequire(import.meta.url)(compiler);
const compilerOptions = { target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext };

Object.assign(globalThis, { // The tools of the tests.
  add: async (a, b = 0) => a + b,
  fetch: async (...args) => { if (args.length > 1) throw new TypeError(); return args[0] * 2; },
  write: async (path, content = "") => ({ path, bytes: content.length }),
});

const prepared = (source) => {
  const { outputText } = ts.transpileModule(source, { compilerOptions });
  return outputText.replace(/^export (default \w+;|\{\};)?/gm, "");
};

// Declarations may be repeated by a later run.
const repeatable = (code) =>
  code.replace(/^(const|let) /gm, "var ").replace(/^class (\w+)/gm, "var $1 = class $1");

const awaiting = (code) => {
  const tree = ts.createSourceFile("a.js", code, ts.ScriptTarget.ESNext, true);
  const last = tree.statements.at(-1);
  if (!ts.isExpressionStatement(last)) return `(async () => {${code}})()`;
  const [start, end] = [last.expression.getStart(), last.expression.getEnd()];
  return `(async () => {${code.slice(0, start)} return (${code.slice(start, end)})})()`;
};

const outcomes = [];
for (const source of runs) {
  let printed = "";
  const stdout = new Writable({ write(chunk, _encoding, done) { printed += chunk; done(); } });
  globalThis.console = new Console({ stdout, stderr: process.stderr });
  const code = runs.length > 1 ? repeatable(prepared(source)) : prepared(source);
  let value;
  try {
    value = runInThisContext(code);
  } catch (error) {
    if (!(error instanceof SyntaxError) || !/await/.test(code)) throw error;
    value = runInThisContext(awaiting(code));
  }
  value = await value;
  await new Promise((resolve) => setTimeout(resolve, 1));
  outcomes.push([value === undefined ? null : value, printed]);
}
process.stdout.write(JSON.stringify(outcomes));
