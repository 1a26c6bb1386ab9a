// The modules `fs`, `fs/promises`, `path` and `buffer` of node, over the session's own files.
(part, draw) => {
  const tree = part("files");
  const { Buffer, bytesOf, textOf } = part("buffer");
  const { failure, isFolder } = tree;
  const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  const UNLINKED = "the files of a session have no links";
  const constants = { COPYFILE_EXCL: 1, F_OK: 0, R_OK: 4, W_OK: 2, X_OK: 1 };

  const typeError = (name, wanted) => Object.assign(
    new TypeError(`The "${name}" argument must be ${wanted}.`), { code: "ERR_INVALID_ARG_TYPE" });
  const valueError = (text) =>
    Object.assign(new TypeError(text), { code: "ERR_INVALID_ARG_VALUE" });
  const pathOf = (value, name = "path") => {
    let path = value;
    if (value instanceof Uint8Array) path = textOf(value);
    else if (typeof value !== "string" && value?.protocol === "file:") {
      path = decodeURIComponent(value.pathname);
    }
    if (typeof path !== "string") {
      throw typeError(name, "of type string or an instance of Buffer or URL");
    }
    if (!path.includes("\0")) return path.toWellFormed();
    throw valueError(`The argument '${name}' must be a string without null bytes.`);
  };
  const settings = (options) => {
    const given = typeof options === "string" ? { encoding: options } : options ?? {};
    if (!given.encoding || given.encoding === "buffer" || Buffer.isEncoding(given.encoding)) {
      return given;
    }
    throw valueError(`The argument 'encoding' is invalid encoding. Received '${given.encoding}'`);
  };
  const contentOf = (data, { encoding }) => {
    if (typeof data === "string") return bytesOf(data, encoding);
    if (ArrayBuffer.isView(data)) {
      return new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice();
    }
    throw typeError("data", "of type string or an instance of Buffer, TypedArray, or DataView");
  };
  const kinds = (entry) => ({
    isFile: () => !isFolder(entry), isDirectory: () => isFolder(entry),
    isSymbolicLink: () => false, isBlockDevice: () => false, isCharacterDevice: () => false,
    isFIFO: () => false, isSocket: () => false,
  });
  const hidden = (target, methods) => {
    for (const name in methods) Object.defineProperty(target, name, { value: methods[name] });
    return target;
  };
  class Stats {}
  class Dirent {}
  const stats = (entry) => {
    const size = isFolder(entry) ? 0 : entry.size;
    const times = { atimeMs: entry.changed, mtimeMs: entry.changed, ctimeMs: entry.changed,
      birthtimeMs: entry.made };
    const dates = { atime: new Date(entry.changed), mtime: new Date(entry.changed),
      ctime: new Date(entry.changed), birthtime: new Date(entry.made) };
    const rest = { dev: 0, mode: isFolder(entry) ? 0o40755 : 0o100644, nlink: 1, uid: 0, gid: 0,
      rdev: 0, blksize: 4096, ino: entry.number, size, blocks: Math.ceil(size / 512) };
    return hidden(Object.assign(new Stats(), rest, times, dates), kinds(entry));
  };
  const dirent = (entry, path) => {
    const at = path.lastIndexOf("/"), parentPath = path.slice(0, at) || "/";
    const found = Object.assign(new Dirent(), { name: path.slice(at + 1), parentPath });
    return hidden(found, { ...kinds(entry), path: parentPath });
  };

  // --- functions that node has as `...Sync`, with a callback, and in `promises` --------------------

  const store = (path, data, options, standard) => {
    const act = { syscall: "open", path: pathOf(path) };
    const given = settings(options), flag = given.flag ?? standard;
    if (!/^(w|a)(x?)(\+?)$/.test(flag)) {
      throw valueError(`The argument 'flags' is invalid. Received '${flag}'`);
    }
    const content = contentOf(data, given);
    const file = tree.opened(act.path, act, flag.includes("x"));
    const writing = { syscall: "write", path: act.path };
    if (flag.startsWith("a")) tree.write(file, file.size, content, writing);
    else tree.fill(file, content, writing);
  };
  const removed = (path, { recursive = false, force = false }) => {
    const act = { syscall: "lstat", path };
    const entry = force ? tree.found(path, act) : tree.find(path, act);
    if (entry === undefined) return;
    if (isFolder(entry) && !recursive) {
      const text = `Path is a directory: rm returned EISDIR (is a directory) ${path}`;
      const details = { code: "ERR_FS_EISDIR", errno: 21, syscall: "rm", path };
      throw Object.assign(new Error(text), { name: "SystemError", ...details });
    }
    tree.remove(path, { syscall: "rm", path });
  };
  const emptied = (path) => {
    const act = { syscall: "rmdir", path };
    if (tree.findFolder(path, act).entries.size) throw failure("ENOTEMPTY", act);
    tree.remove(path, act);
  };
  const listed = (path, { recursive = false, withFileTypes = false }) => {
    const act = { syscall: "scandir", path };
    const top = tree.findFolder(path, act), whole = `/${tree.names(path, act).join("/")}`;
    const entries = [];
    if (recursive) entries.push(...tree.below(top, whole));
    else {
      for (const name of [...top.entries.keys()].sort()) {
        entries.push([`${whole === "/" ? "" : whole}/${name}`, top.entries.get(name)]);
      }
    }
    if (withFileTypes) return entries.map(([name, entry]) => dirent(entry, name));
    const prefix = whole === "/" ? 1 : whole.length + 1;
    return entries.map(([name]) => name.slice(prefix));
  };
  const functions = {
    access(path) { tree.find(pathOf(path), { syscall: "access", path: pathOf(path) }); },
    appendFile(path, data, options) { store(path, data, options, "a"); },
    copyFile(source, target, mode = 0) {
      const act = { syscall: "copyfile", path: pathOf(source, "src"), dest: pathOf(target, "dest") };
      const content = tree.bytesOf(tree.findFile(act.path, act)).slice();
      const exclusive = Boolean(mode & constants.COPYFILE_EXCL);
      tree.fill(tree.opened(act.dest, act, exclusive), content, act);
    },
    link(path, dest) { throw failure("EPERM", { syscall: "link", path, dest }, UNLINKED); },
    lstat(path, options) { return functions.stat(path, options, "lstat"); },
    mkdir(path, options) {
      const act = { syscall: "mkdir", path: pathOf(path) };
      if (!Object(options).recursive) return tree.createFolder(act.path, act);
      const first = tree.createFolders(act.path, act);
      return act.path.startsWith("/") ? first : first?.slice(tree.HOME.length + 1);
    },
    mkdtemp(prefix) {
      const start = pathOf(prefix, "prefix");
      const end = Array.from({ length: 6 }, () => LETTERS[draw() % LETTERS.length]).join("");
      tree.createFolder(start + end, { syscall: "mkdtemp", path: `${start}XXXXXX` });
      return start + end;
    },
    readFile(path, options) {
      const { encoding } = settings(options);
      const act = { syscall: "open", path: pathOf(path) };
      const entry = tree.find(act.path, act);
      if (isFolder(entry)) throw failure("EISDIR", { syscall: "read" });
      const bytes = tree.bytesOf(entry);
      return encoding && encoding !== "buffer" ? textOf(bytes, encoding) : new Buffer(bytes);
    },
    readdir(path, options) { return listed(pathOf(path), settings(options)); },
    realpath(path) {
      const act = { syscall: "realpath", path: pathOf(path) };
      tree.find(act.path, act);
      return `/${tree.names(act.path, act).join("/")}`;
    },
    rename(source, target) {
      const [path, dest] = [pathOf(source, "oldPath"), pathOf(target, "newPath")];
      tree.rename(path, dest, { syscall: "rename", path, dest });
    },
    rm(path, options) { removed(pathOf(path), Object(options)); },
    rmdir(path) { emptied(pathOf(path)); },
    stat(path, options, syscall = "stat") {
      const act = { syscall, path: pathOf(path) };
      const optional = Object(options).throwIfNoEntry === false;
      const entry = optional ? tree.found(act.path, act) : tree.find(act.path, act);
      return entry && stats(entry);
    },
    symlink(path, dest) { throw failure("EPERM", { syscall: "symlink", path, dest }, UNLINKED); },
    truncate(path, length = 0) {
      const act = { syscall: "open", path: pathOf(path) };
      const entry = tree.findFile(act.path, act);
      const content = tree.bytesOf(entry).slice(0, length);
      tree.fill(entry, content, act);
      if (content.length < length) {
        tree.write(entry, content.length, new Uint8Array(length - content.length), act);
      }
    },
    unlink(path) {
      const act = { syscall: "unlink", path: pathOf(path) };
      if (isFolder(tree.find(act.path, act))) throw failure("EISDIR", act);
      tree.remove(act.path, act);
    },
    writeFile(path, data, options) { store(path, data, options, "w"); },
  };
  const ABSENT = [
    "chmod", "chown", "cp", "createReadStream", "createWriteStream", "open", "opendir", "readlink",
    "utimes", "watch", "watchFile",
  ];
  const absent = (name) => () => {
    const text = `fs.${name} is not available in the sandbox: a session has plain files without ` +
      "modes and streams; read and write them whole, by readFileSync and writeFileSync";
    throw Object.assign(new Error(text), { code: "ERR_FEATURE_UNAVAILABLE_ON_PLATFORM" });
  };

  const fs = { constants, Stats, Dirent }, promises = { constants };
  const called = (act, name) => (...args) => {
    const callback = args.pop();
    if (typeof callback !== "function") throw typeError("cb", "of type function");
    promises[name](...args).then((value) => callback(null, value), callback);
  };
  const offer = (name, act) => {
    promises[name] = { async [name](...args) { return act(...args); } }[name];
    fs[`${name}Sync`] = Object.defineProperty(
      (...args) => act(...args), "name", { value: `${name}Sync` });
    fs[name] = called(act, name);
  };
  for (const name in functions) offer(name, functions[name]);
  for (const name of ABSENT) offer(name, absent(name));
  for (const name of ["createReadStream", "createWriteStream", "watch", "watchFile"]) {
    fs[name] = absent(name);
  }
  for (const name of ["openSync", "readSync", "writeSync", "closeSync", "readlinkSync"]) {
    fs[name] = absent(name);
  }
  fs.existsSync = (path) => {
    try { return Boolean(tree.found(pathOf(path), { syscall: "access" })); } catch { return false; }
  };
  fs.promises = promises;

  const modules = {
    "buffer": () => ({ Buffer }), "fs": () => fs, "fs/promises": () => promises,
    "path": () => part("path"), "path/posix": () => part("path"),
  };
  const loaded = new Map(), spaces = new Map();
  const load = (request) => {
    const name = `${request}`.replace(/^node:/, "");
    if (!Object.hasOwn(modules, name)) {
      const text = `Cannot find module '${request}': a program has ${Object.keys(modules).join(", ")}`;
      throw Object.assign(new Error(text), { code: "MODULE_NOT_FOUND" });
    }
    if (!loaded.has(name)) loaded.set(name, modules[name]());
    return loaded.get(name);
  };
  // A module as `import * as` sees it.
  const space = (request) => {
    const found = load(request);
    if (!spaces.has(found)) spaces.set(found, { ...found, default: found });
    return spaces.get(found);
  };
  return {
    load,
    // A binding of an import: `*` is the whole module.
    imported(request, name) {
      const all = space(request);
      if (name === "*") return all;
      if (Object.hasOwn(all, name)) return all[name];
      throw new SyntaxError(
        `The requested module '${request}' does not provide an export named '${name}'`);
    },
  };
}
