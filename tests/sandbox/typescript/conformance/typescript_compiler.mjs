// What the TypeScript compiler makes of programs, and whether two programs are the same tree. Reads
// {"emit": [source], "compare": [[text, text]], "wrong": [source], "run": [[text, text]]} line by
// line from stdin and writes the answers. Its argument is where the compiler is.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { inspect } from "node:util";
import { createContext, runInContext } from "node:vm";

const ts = createRequire(import.meta.url)(process.argv[2]);
const { SyntaxKind: Kind, NodeFlags } = ts;
const HIDDEN = new Set(["parent", "pos", "end", "flags", "kind", "jsDoc", "id", "original",
  "transformFlags", "modifierFlagsCache", "endOfFileToken", "illegalModifiers"]);
const DROPPED = new Set([Kind.EmptyStatement, Kind.SemicolonClassElement, Kind.ImportDeclaration,
  Kind.ExportDeclaration]);

const parsed = (name, text, kind) =>
  ts.createSourceFile(name, text, ts.ScriptTarget.ESNext, true, kind);

// --- what the compiler makes of it ---------------------------------------------------------------

const ERASED = { // Syntax that is more than a type, by the compiler's --erasableSyntaxOnly.
  [Kind.EnumDeclaration]: (node) => !declared(node),
  [Kind.ModuleDeclaration]: (node) => !declared(node) && ts.isInstantiatedModule(node, true),
  [Kind.ImportEqualsDeclaration]: (node) => !node.isTypeOnly && !declared(node),
  [Kind.ExportAssignment]: (node) => node.isExportEquals,
  [Kind.Parameter]: (node) => ts.isParameterPropertyDeclaration(node, node.parent),
  [Kind.TypeAssertionExpression]: () => true,
};
const declared = (node) => {
  for (; node; node = node.parent) {
    if (node.modifiers?.some((modifier) => modifier.kind === Kind.DeclareKeyword)) return true;
  }
  return false;
};
const isErasable = (node) =>
  !ERASED[node.kind]?.(node) && !ts.forEachChild(node, (child) => !isErasable(child));
ts.isInstantiatedModule ??= (node) => ts.getModuleInstanceState(node) !== 0;

// `import a = require("b")` is left out of modules that have other imports: it asks for one yet.
const requires = (tree) => tree.statements.some((node) =>
  ts.isImportEqualsDeclaration(node) && !node.isTypeOnly &&
    ts.isExternalModuleReference(node.moduleReference));

const emitted = (source) => {
  const tree = parsed("case.ts", source, ts.ScriptKind.TS);
  if (tree.parseDiagnostics.length) return null;
  const compilerOptions = {
    target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext, removeComments: true,
    alwaysStrict: false,
  };
  const { outputText } = ts.transpileModule(source, { compilerOptions, fileName: "case.ts" });
  return { text: outputText, erasable: isErasable(tree), requires: requires(tree) };
};

const readable = (source) => {
  try { return emitted(source); } catch { return null; /* The compiler gives up on some. */ }
};

// The numbers of what the compiler finds wrong with a program's syntax; what it finds wrong with the
// types does not count, nor what depends on how modules are made.
const NOT_SYNTAX = new Set([1148, 1192, 1202, 1203, 1208, 1259, 1471, 1479, 1484]);
const isSyntax = (code) => (code < 2000 || (code >= 17000 && code < 19000)) && !NOT_SYNTAX.has(code);
const wrong = (source) => {
  const options = {
    target: ts.ScriptTarget.ESNext, module: ts.ModuleKind.ESNext, noLib: true, noResolve: true,
    types: [], allowUnreachableCode: true,
  };
  const tree = parsed("case.ts", source, ts.ScriptKind.TS);
  const host = {
    getSourceFile: (name) => (name === "case.ts" ? tree : undefined), writeFile() {},
    getDefaultLibFileName: () => "lib.d.ts", useCaseSensitiveFileNames: () => true,
    getCanonicalFileName: (name) => name, getCurrentDirectory: () => "", getNewLine: () => "\n",
    fileExists: (name) => name === "case.ts", readFile: () => undefined,
  };
  const program = ts.createProgram(["case.ts"], options, host);
  const found = [...program.getSyntacticDiagnostics(tree), ...program.getSemanticDiagnostics(tree)];
  return found.map(({ code }) => code).filter(isSyntax);
};

// --- whether two programs are the same -----------------------------------------------------------

const KEPT = new Set(["operator", "keywordToken", "text", "rawText", "isStatic", "isAwait"]);
const isChain = (node) => (node.flags & NodeFlags.OptionalChain) !== 0;
const bare = (node) => (ts.isParenthesizedExpression(node) ? bare(node.expression) : node);
const renamed = new Map();

const dump = (node) => {
  if (ts.isParenthesizedExpression(node)) {
    const inner = dump(node.expression);
    const { parent } = node;
    const holds = isChain(bare(node)) && parent.expression === node &&
      (ts.isPropertyAccessExpression(parent) || ts.isElementAccessExpression(parent) ||
        ts.isCallExpression(parent));
    return holds ? ["()", inner] : inner;
  }
  if (ts.isIdentifier(node)) return ["Identifier", renamed.get(node.text) ?? node.text];
  const tree = [Kind[node.kind]];
  if (node.kind === Kind.VariableDeclarationList) tree.push(node.flags & NodeFlags.BlockScoped);
  for (const key of Object.keys(node).sort()) {
    if (HIDDEN.has(key)) continue;
    const value = node[key];
    if (value === undefined || value === null) continue;
    if (Array.isArray(value)) {
      const items = value.pos === undefined ? [] : listed(key, value);
      const said = key === "modifiers" || (key === "arguments" && ts.isNewExpression(node));
      if (items.length || !said) tree.push([key, ...items]);
    } else if (typeof value === "object") {
      if (typeof value.kind === "number") tree.push([key, dump(value)]);
    } else if (KEPT.has(key)) tree.push([key, value]);
  }
  return tree;
};
const listed = (key, nodes) => {
  let items = [...nodes].filter((node) => !DROPPED.has(node.kind));
  if (key === "modifiers") {
    items = items.filter(({ kind }) => kind !== Kind.ExportKeyword && kind !== Kind.DefaultKeyword);
  }
  if (key !== "statements") return items.map(dump);
  const spaces = new Set(items.map(filled).filter(Boolean).map(({ name }) => name));
  items = items.filter((node) => !isEmptyName(node, spaces));
  const trees = [];
  for (const node of items) {
    const space = filled(node);
    const outer = handedOn(node, spaces);
    if (space) trees.push(filling(space));
    else if (outer && trees.at(-1)?.[0] === "filled") trees.at(-1)[2] = outer;
    else trees.push(isExpressed(node) ? expressed(node) : dump(node));
  }
  return trees;
};
// `export default`, and what has no name and can only be a value.
const isExpressed = (node) => ts.isExportAssignment(node) || (!hasName(node) &&
  (ts.isFunctionDeclaration(node) || ts.isClassDeclaration(node)));
const hasName = ({ name }) => name && !/^default_\d+$/.test(name.text);
const expressed = (node) => {
  const tree = ts.isExportAssignment(node) ? dump(node.expression) : dump(node);
  tree[0] = tree[0].replace("Declaration", "Expression");
  if (!ts.isExportAssignment(node)) tree.splice(0, tree.length, ...tree.filter(([k]) => k !== "name"));
  return ["ExpressionStatement", ["expression", tree]];
};

// `var E; (function (E) { … })(E || (E = {}))`, `var E = function (E) { …; return E }(E || {})` and
// some more are ways to print one enum or namespace.
const GIVEN = new RegExp("^(?:" + [
  /(?:var|let|export var)?(?<a>\w+) \|\| \(\w+ = \{\}\)/,
  /(?<b>\w+) = (?<c>\w+)\.\w+ \|\| \(\w+\.\w+ = \{\}\)/,
  /(?<d>\w+) \|\| \(\w+ = (?<e>\w+)\.\w+ \|\| \(\w+\.\w+ = \{\}\)\)/,
  /(?:\w+ \|\| )?\{\}/,
].map(({ source }) => source).join("|") + ")$");
const filled = (node) => {
  const [target, value] = given(node);
  const call = value && bare(value);
  if (!call || !ts.isCallExpression(call) || call.arguments.length !== 1) return null;
  const maker = bare(call.expression);
  if (!ts.isFunctionExpression(maker) || maker.parameters.length !== 1) return null;
  const found = GIVEN.exec(call.arguments[0].getText())?.groups;
  if (!found) return null;
  const { a, b, c, d, e } = found;
  const name = a ?? b ?? d ?? target;
  return name && { name, outer: c ?? e, body: maker.body,
    parameter: maker.parameters[0].name.getText() };
};
const given = (node) => {
  if (ts.isVariableStatement(node)) {
    const [{ name, initializer }] = node.declarationList.declarations;
    return [name.getText(), initializer];
  }
  if (!ts.isExpressionStatement(node)) return [];
  const { expression } = node;
  if (!ts.isBinaryExpression(expression)) return [undefined, expression];
  return [expression.left.getText(), expression.right];
};
// The `A` of `A.E = E`.
const handedOn = (node, spaces) => {
  const found = /^(\w+)\.(\w+) = \2;?$/.exec(node.getText());
  return found && spaces.has(found[2]) ? renamed.get(found[1]) ?? found[1] : null;
};
const isEmptyName = (node, spaces) => ts.isVariableStatement(node) &&
  node.declarationList.declarations.every(({ name, initializer }) =>
    !initializer && spaces.has(name.text));
const filling = ({ name, outer, body, parameter }) => {
  const before = renamed.get(parameter);
  const tree = ["filled", name, renamed.get(outer) ?? outer ?? null];
  renamed.set(parameter, name);
  const statements = [...body.statements].filter((node) => !ts.isReturnStatement(node) ||
    node.expression?.getText() !== parameter);
  tree.push(...listed("statements", statements));
  before === undefined ? renamed.delete(parameter) : renamed.set(parameter, before);
  return tree;
};
const shown = (text) => {
  const tree = parsed("case.js", text, ts.ScriptKind.JS);
  renamed.clear();
  return JSON.stringify(listed("statements", tree.statements));
};

// Nothing if both are the same tree; or else where they part.
const compared = ([one, other]) => {
  const [left, right] = [shown(one), shown(other)];
  if (left === right) return null;
  let at = 0;
  while (left[at] === right[at]) at++;
  const from = Math.max(0, at - 150);
  return [left.slice(from, at + 150), right.slice(from, at + 150)];
};

// Whether two scripts leave the same behind, or fail alike.
const ran = (pair) => {
  const [one, other] = pair.map((text) => {
    const lines = [];
    const world = createContext({ console: { log: (...values) => lines.push(inspect(values)) } });
    try { runInContext(text, world, { timeout: 500 }); } catch (error) { lines.push(`${error}`); }
    delete world.console;
    return `${lines.join("\n")} ${inspect(world, { depth: 9, sorted: true })}`;
  });
  return one === other ? null : [one, other];
};

const answer = (task) => ({
  emit: (task.emit ?? []).map(readable), compare: (task.compare ?? []).map(compared),
  wrong: (task.wrong ?? []).map(wrong), run: (task.run ?? []).map(ran),
});
for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  process.stdout.write(`${JSON.stringify(answer(JSON.parse(line)))}\n`);
}
