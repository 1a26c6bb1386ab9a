// Files by node's `fs`, and the modules that go with it.
import fs from "node:fs";
import path from "node:path";
import { Buffer } from "node:buffer";

let out;
const caught = (act) => {
  try { act(); return "no error"; } catch (e) {
    return [e.code, e.errno ?? null, e.syscall ?? null, e.name === "TypeError"];
  }
};

// --- texts
fs.writeFileSync("a.txt", "one\ntwo é 😀\n")
fs.appendFileSync("a.txt", "three")
out = [fs.readFileSync("a.txt", "utf8"), fs.readFileSync("a.txt", { encoding: "latin1" }).length,
  fs.readFileSync("a.txt").toString("base64"), fs.statSync("a.txt").size]
for (const one of out) console.log(JSON.stringify(one));

// --- bytes
fs.writeFileSync("b", Buffer.from([0, 255, 128]))
fs.appendFileSync("b", new Uint16Array([1, 513]))
out = [fs.readFileSync("b", "hex"), fs.readFileSync("b", "utf8"), [...fs.readFileSync("b")],
  fs.readFileSync("b").subarray(1, 3).toString("hex"), Buffer.concat([fs.readFileSync("b")]).length]
for (const one of out) console.log(JSON.stringify(one));

// --- folders
out = [fs.mkdirSync("x/y/z", { recursive: true }), fs.mkdirSync("w")]
fs.writeFileSync("x/y/a", "1"); fs.writeFileSync("x/b", "22")
out.push(fs.readdirSync("x"), fs.readdirSync("x", { recursive: true }).sort(),
  fs.readdirSync("x", { withFileTypes: true }).map((d) => [d.name, d.isDirectory(), d.isFile()]))
fs.renameSync("x/y", "w/moved"); fs.copyFileSync("x/b", "w/moved/z/c")
out.push(fs.readdirSync("w", { recursive: true }).sort(), fs.existsSync("x/y"))
fs.rmSync("w", { recursive: true }); fs.rmSync("none", { force: true })
out.push(fs.existsSync("w"), fs.statSync("x").isDirectory(), fs.statSync("q", { throwIfNoEntry: false }))
for (const one of out) console.log(JSON.stringify(one));

// --- flags
fs.writeFileSync("f", "1"); fs.writeFileSync("f", "2", { flag: "a" })
out = [fs.readFileSync("f", "utf8"), caught(() => fs.writeFileSync("f", "3", { flag: "wx" }))]
fs.writeFileSync("g", "6869", "hex"); fs.truncateSync("f", 1)
out.push(fs.readFileSync("g", "utf8"), fs.readFileSync("f", "utf8"))
for (const one of out) console.log(JSON.stringify(one));

// --- errors
fs.mkdirSync("d/e", { recursive: true }); fs.writeFileSync("a", "x")
out = [
  () => fs.readFileSync("no"), () => fs.writeFileSync("no/a", ""), () => fs.readFileSync("d"),
  () => fs.writeFileSync("d", ""), () => fs.readFileSync("a/b"), () => fs.mkdirSync("d"),
  () => fs.mkdirSync("q/r"), () => fs.rmdirSync("d"), () => fs.rmdirSync("a"),
  () => fs.readdirSync("a"), () => fs.readdirSync("no"), () => fs.unlinkSync("no"),
  () => fs.rmSync("d"), () => fs.rmSync("no"), () => fs.renameSync("d", "d/e/f"),
  () => fs.renameSync("no", "b"), () => fs.statSync("no"), () => fs.accessSync("no"),
  () => fs.copyFileSync("no", "b"), () => fs.copyFileSync("a", "a", fs.constants.COPYFILE_EXCL),
  () => fs.readFileSync(""), () => fs.writeFileSync("a\0", ""), () => fs.writeFileSync("b", 1),
  () => fs.readFileSync("a", "utf-9"), () => fs.mkdirSync("a/b"),
  () => fs.writeFileSync("x".repeat(300), ""), () => fs.renameSync("a", "d"),
  () => fs.renameSync("d", "a"), () => fs.mkdirSync("a", { recursive: true }),
].map(caught)
for (const one of out) console.log(JSON.stringify(one));

// --- buffers
const b = Buffer.from("héllo wörld")
out = [b.length, b.toString("utf8", 1, 3), b.equals(Buffer.from("aMOpbGxv", "base64")),
  Buffer.byteLength("é"), Buffer.isBuffer(b), Buffer.compare(b, Buffer.alloc(2)),
  Buffer.from("ff0g", "hex").length, Buffer.from("-_-_", "base64").toString("base64url"),
  Buffer.alloc(3, "ab").toString(), b.slice(0, 1).toString(), JSON.stringify(Buffer.from("a")),
  Buffer.from("aé", "latin1").toString("hex"), Buffer.from("é", "utf16le").length,
  Buffer.from([255, 65, 0xc3]).toString(), `${Buffer.from("x")}`, Buffer.from(b).length]
for (const one of out) console.log(JSON.stringify(one));

// --- paths
out = ["/a/b.c/", "a/../../b", "", ".", "a//b/./c", ".x", "a.b.c", "..", "/"].map((p) => [
  path.normalize(p), path.dirname(p), path.basename(p), path.extname(p), path.isAbsolute(p),
  path.parse(p), path.join("q", p), path.relative("/q/w", path.resolve("/q", p)),
  path.format(path.parse(p))])
for (const one of out) console.log(JSON.stringify(one));
