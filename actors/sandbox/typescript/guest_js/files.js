// The files of a session: trees below /work and /tmp in the interpreter's memory, so a snapshot of
// the session holds them. One limit covers the bytes of all files and a fixed charge for every file
// and folder. There are no links, so the text of a path alone decides where it leads. Evaluated
// when a program or the host first uses a file.
(_part, _draw, { encode, decode, emit }) => {
  const { now } = Date;
  const HOME = "/work", OUT = "/work/out", TOPS = ["work", "tmp"];
  const BYTES_MAX = 16 << 20, ENTRY_BYTES = 512, NAME_BYTES_MAX = 255, PATH_BYTES_MAX = 1024;
  const PIECE_BYTES = 48 << 10, ENTRIES_MAX = 10000, CAPACITY_MIN = 64;
  const NAME_CHANNEL = "3", DATA_CHANNEL = "4";
  const OUTSIDE = "a program has no files outside /work and /tmp; tools reach the others, see" +
    " list_tools()";
  const FULL = `the files of a session may take ${BYTES_MAX} bytes`;
  const ERRORS = {
    EPERM: [1, "operation not permitted"],
    ENOENT: [2, "no such file or directory"],
    EACCES: [13, "permission denied"],
    EEXIST: [17, "file already exists"],
    ENOTDIR: [20, "not a directory"],
    EISDIR: [21, "illegal operation on a directory"],
    EINVAL: [22, "invalid argument"],
    ENOSPC: [28, "no space left on device"],
    ENAMETOOLONG: [36, "name too long"],
    ENOTEMPTY: [39, "directory not empty"],
  };

  // An error as node has it; `act` is the system call that node would have made, and its paths.
  const failure = (code, act, why = "") => {
    const [errno, words] = ERRORS[code];
    const from = act.path === undefined ? "" : ` '${act.path}'`;
    const to = act.dest === undefined ? "" : ` -> '${act.dest}'`;
    const error = new Error(`${code}: ${words}, ${act.syscall}${from}${to}${why && `: ${why}`}`);
    return Object.assign(error, { errno: -errno, code }, act);
  };

  // --- entries ---------------------------------------------------------------------------------

  let numbers = 0, used = 0;
  let epoch = 1; // A file with this number was written, or moved, by the present run.
  const entry = (more) => {
    const made = now();
    return { number: ++numbers, made, changed: made, ...more };
  };
  const file = () => entry({ size: 0, room: null, written: epoch });
  const folder = () => entry({ entries: new Map() });
  const isFolder = (entry) => entry.entries !== undefined;
  const root = folder();
  for (const top of TOPS) root.entries.set(top, folder());

  const charge = (bytes, act) => {
    if (bytes > 0 && used + bytes > BYTES_MAX) throw failure("ENOSPC", act, FULL);
    used += bytes;
  };
  const bytesOf = (entry) => (entry.room ? entry.room.subarray(0, entry.size) : new Uint8Array());
  const touch = (entry) => {
    entry.changed = now();
    entry.written = epoch;
  };
  // Fills a file with bytes that only this file changes.
  const fill = (entry, bytes, act) => {
    charge(bytes.length - entry.size, act);
    entry.room = bytes;
    entry.size = bytes.length;
    touch(entry);
  };
  const write = (entry, position, bytes, act) => {
    const end = position + bytes.length;
    charge(Math.max(end - entry.size, 0), act);
    if (end > (entry.room?.length ?? 0)) {
      const room = new Uint8Array(Math.max(CAPACITY_MIN, end + (end >> 1)));
      room.set(bytesOf(entry));
      entry.room = room;
    } else if (position > entry.size) entry.room.fill(0, entry.size, position);
    entry.room.set(bytes, position);
    entry.size = Math.max(entry.size, end);
    touch(entry);
  };

  // --- paths -----------------------------------------------------------------------------------

  const ASCII = /^[\0-\x7f]*$/;
  const byteLength = (text) => (ASCII.test(text) ? text.length : encode("utf8", text).length);
  const NAME_CHARS_MIN = NAME_BYTES_MAX / 3; // A character has at most three bytes.
  const isLongName = (name) => byteLength(name) > NAME_BYTES_MAX;
  // The names from the root to the path, without "." and "..".
  const names = (path, act) => {
    if (path === "") throw failure("ENOENT", act);
    const whole = path.startsWith("/") ? path : `${HOME}/${path}`;
    const found = [];
    for (const name of whole.split("/")) {
      if (name === "..") found.pop();
      else if (name !== "" && name !== ".") found.push(name);
    }
    if (found.length && !TOPS.includes(found[0])) throw failure("EACCES", act, OUTSIDE);
    const isLong = whole.length > NAME_CHARS_MIN;
    if (isLong && (byteLength(whole) > PATH_BYTES_MAX || found.some(isLongName))) {
      throw failure("ENAMETOOLONG", act);
    }
    return found;
  };
  // The entry at the end of the steps, or undefined.
  const follow = (steps, act) => {
    let entry = root;
    for (const name of steps) {
      if (!isFolder(entry)) throw failure("ENOTDIR", act);
      entry = entry.entries.get(name);
      if (entry === undefined) return undefined;
    }
    return entry;
  };
  const found = (path, act) => {
    const entry = follow(names(path, act), act);
    if (entry && path.endsWith("/") && !isFolder(entry)) throw failure("ENOTDIR", act);
    return entry;
  };
  const find = (path, act) => {
    const entry = found(path, act);
    if (entry === undefined) throw failure("ENOENT", act);
    return entry;
  };
  const findFile = (path, act) => {
    const entry = find(path, act);
    if (isFolder(entry)) throw failure("EISDIR", act);
    return entry;
  };
  const findFolder = (path, act) => {
    const entry = find(path, act);
    if (!isFolder(entry)) throw failure("ENOTDIR", act);
    return entry;
  };
  // The folder of a path, which must exist, and the name in it.
  const parentOf = (path, act) => {
    const steps = names(path, act);
    const name = steps.pop();
    if (!steps.length) throw failure("EACCES", act, `/${name ?? ""} itself cannot be changed`);
    const above = follow(steps, act);
    if (above === undefined) throw failure("ENOENT", act);
    if (!isFolder(above)) throw failure("ENOTDIR", act);
    return [above, name];
  };

  // --- changes ---------------------------------------------------------------------------------

  const insert = (above, name, make, act) => {
    charge(ENTRY_BYTES, act);
    const made = make();
    above.entries.set(name, made);
    above.changed = now();
    return made;
  };
  const add = (path, act, make) => {
    const [above, name] = parentOf(path, act);
    return insert(above, name, make, act);
  };
  // The file at a path, made if there is none.
  const opened = (path, act, exclusive) => {
    const present = found(path, act);
    if (present && exclusive) throw failure("EEXIST", act);
    if (present && isFolder(present)) throw failure("EISDIR", act);
    if (present) return present;
    if (path.endsWith("/")) throw failure("EISDIR", act);
    return add(path, act, file);
  };
  const createFolder = (path, act) => {
    const steps = names(path, act);
    if (steps.length < 2 || found(path, act)) throw failure("EEXIST", act);
    add(path, act, folder);
  };
  // Makes the folders of a path that are missing; returns the first of them.
  const createFolders = (path, act) => {
    const steps = names(path, act);
    let first, above = root;
    steps.forEach((name, at) => {
      if (!isFolder(above)) throw failure("ENOTDIR", act);
      const present = above.entries.get(name);
      if (present === undefined) first ??= `/${steps.slice(0, at + 1).join("/")}`;
      above = present ?? insert(above, name, folder, act);
    });
    if (!isFolder(above)) throw failure("EEXIST", act);
    return first;
  };
  // All entries below a folder, each folder before what is in it.
  function* below(above, path, sorted = true) {
    const listed = (entry) => {
      const all = [...entry.entries];
      return sorted ? all.sort(([a], [b]) => (a < b ? -1 : 1)) : all;
    };
    const open = [[path, listed(above), 0]];
    while (open.length) {
      const level = open[open.length - 1];
      const [prefix, entries, at] = level;
      if (at === entries.length) {
        open.pop();
        continue;
      }
      level[2]++;
      const [name, entry] = entries[at];
      const inner = `${prefix === "/" ? "" : prefix}/${name}`;
      yield [inner, entry];
      if (isFolder(entry)) open.push([inner, listed(entry), 0]);
    }
  }
  const sizeOf = (entry) => {
    let size = ENTRY_BYTES + (entry.size ?? 0);
    if (isFolder(entry)) {
      for (const [, one] of below(entry, "", false)) size += ENTRY_BYTES + (one.size ?? 0);
    }
    return size;
  };
  // Removes a file or a folder with all that is in it.
  const remove = (path, act) => {
    const [above, name] = parentOf(path, act);
    const entry = find(path, act);
    above.entries.delete(name);
    above.changed = now();
    charge(-sizeOf(entry), act);
  };
  const rename = (source, target, act) => {
    const [from, name] = parentOf(source, act);
    const entry = find(source, act);
    const [to, as] = parentOf(target, act);
    const present = to.entries.get(as);
    if (present === entry) return;
    if (isFolder(entry)) {
      const steps = names(source, act), wanted = names(target, act);
      if (steps.every((step, at) => wanted[at] === step)) throw failure("EINVAL", act);
    } else if (target.endsWith("/")) throw failure("ENOTDIR", act);
    const moved = movable(entry, target, act);
    if (present !== undefined) {
      if (isFolder(present) && !isFolder(entry)) throw failure("EISDIR", act);
      if (!isFolder(present) && isFolder(entry)) throw failure("ENOTDIR", act);
      if (isFolder(present) && present.entries.size) throw failure("ENOTEMPTY", act);
      charge(-sizeOf(present), act);
    }
    for (const one of moved) one.written = epoch;
    from.entries.delete(name);
    to.entries.set(as, entry);
    from.changed = to.changed = now();
  };
  // The files in an entry. No path may become too long to be named.
  const movable = (entry, target, act) => {
    if (!isFolder(entry)) return [entry];
    const files = [];
    for (const [path, one] of below(entry, `/${names(target, act).join("/")}`, false)) {
      if (byteLength(path) > PATH_BYTES_MAX) throw failure("ENAMETOOLONG", act);
      if (!isFolder(one)) files.push(one);
    }
    return files;
  };

  // --- the host's own access, between runs -------------------------------------------------------

  const CODES = {
    EACCES: "PERMISSION_DENIED", ENOSPC: "FILES_FULL", ENOENT: "FILE_NOT_FOUND",
    ENOTDIR: "FILE_NOT_FOUND", EISDIR: "FILE_NOT_FOUND",
  };
  const operations = {
    write(path, { at, data }, act) {
      if (at === 0) {
        const above = names(path, act).slice(0, -1);
        if (above.length) createFolders(`/${above.join("/")}`, act);
        fill(opened(path, act), new Uint8Array(), act);
      }
      write(findFile(path, act), at, encode("base64", data), act);
      return null;
    },
    remove(path, _request, act) {
      const entry = find(path, act);
      if (isFolder(entry) && entry.entries.size) throw failure("ENOTEMPTY", act);
      remove(path, act);
      return null;
    },
    read(path, { at, count }, act) {
      const entry = findFile(path, act);
      return { data: decode("base64", bytesOf(entry).subarray(at, at + count)), size: entry.size };
    },
    list(path, _request, act) {
      const entry = find(path, act), whole = `/${names(path, act).join("/")}`;
      const entries = [];
      for (const [name, one] of isFolder(entry) ? below(entry, whole) : [[whole, entry]]) {
        if (entries.length === ENTRIES_MAX) return { entries, cut: true };
        entries.push([name, isFolder(one) ? one.entries.size * 32 : one.size, isFolder(one)]);
      }
      return { entries, cut: false };
    },
  };
  const serve = (request) => {
    const path = request.path.startsWith("/") ? request.path : `${HOME}/${request.path}`;
    try {
      if (path.includes("\0")) throw new TypeError("the path has a null character");
      const value = operations[request.op](path, request, { syscall: request.op });
      return { value, kind: "json" };
    } catch (error) {
      const code = CODES[error.code] ?? "INVALID_ARGUMENT";
      return { error: { code, message: `${path}: ${error.message}`, hint: null } };
    } finally {
      epoch++; // By no run.
    }
  };
  // Sends the files in /work/out that the run has written, as far as the host takes them.
  const sendWritten = () => {
    const changed = epoch++, out = follow(["work", "out"]);
    if (out === undefined || !isFolder(out)) return;
    for (const [name, entry] of below(out, OUT)) {
      if (isFolder(entry) || entry.written !== changed) continue;
      if (!emit(NAME_CHANNEL, name)) return;
      for (let at = 0; at < entry.size; at += PIECE_BYTES) {
        const piece = bytesOf(entry).subarray(at, at + PIECE_BYTES);
        if (!emit(DATA_CHANNEL, decode("base64", piece))) break;
      }
    }
  };

  return {
    HOME, below, bytesOf, createFolder, createFolders, failure, fill, find, findFile, findFolder,
    found, isFolder, names, opened, parentOf, remove, rename, sendWritten, serve, write,
  };
}
