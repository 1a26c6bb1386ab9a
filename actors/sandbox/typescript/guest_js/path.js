// The module `path` of node, as on Linux; the current folder is /work.
(part) => {
  const { HOME } = part("files");
  const checked = (path) => {
    if (typeof path === "string") return path;
    const error = new TypeError('The "path" argument must be of type string.');
    throw Object.assign(error, { code: "ERR_INVALID_ARG_TYPE" });
  };
  const isAbsolute = (path) => checked(path).startsWith("/");
  const reduced = (path, rooted) => {
    const out = [];
    for (const name of path.split("/")) {
      if (name === "" || name === ".") continue;
      if (name !== "..") out.push(name);
      else if (out.length && out[out.length - 1] !== "..") out.pop();
      else if (!rooted) out.push(name);
    }
    return out;
  };
  const normalize = (path) => {
    if (checked(path) === "") return ".";
    const rooted = isAbsolute(path), ends = path.endsWith("/");
    const inner = reduced(path, rooted).join("/");
    if (!inner) return rooted ? "/" : ends ? "./" : ".";
    return `${rooted ? "/" : ""}${inner}${ends ? "/" : ""}`;
  };
  const join = (...paths) => normalize(paths.map(checked).filter((path) => path).join("/"));
  const resolve = (...paths) => {
    let whole = "";
    for (const path of [HOME, ...paths.map(checked)]) {
      whole = isAbsolute(path) ? path : `${whole}/${path}`;
    }
    return `/${reduced(whole, true).join("/")}`;
  };
  const trimmed = (path) => checked(path).replace(/(?<=[^/])\/+$/, "");
  const dirname = (path) => {
    const whole = trimmed(path), at = whole.lastIndexOf("/");
    if (at < 0) return ".";
    return whole.slice(0, at).replace(/(?<=[^/])\/+$/, "") || "/";
  };
  const basename = (path, suffix = "") => {
    const whole = trimmed(path), name = whole.slice(whole.lastIndexOf("/") + 1);
    return suffix && name !== suffix && name.endsWith(suffix)
      ? name.slice(0, -suffix.length) : name;
  };
  const extname = (path) => {
    const name = basename(path), at = name.lastIndexOf(".");
    return at <= 0 || name === ".." ? "" : name.slice(at);
  };
  const relative = (from, to) => {
    const [a, b] = [resolve(from), resolve(to)].map((path) => path.split("/").filter((n) => n));
    let same = 0;
    while (same < a.length && same < b.length && a[same] === b[same]) same++;
    return [...a.slice(same).fill(".."), ...b.slice(same)].join("/");
  };
  const parse = (path) => {
    const root = isAbsolute(path) ? "/" : "", base = basename(path), ext = extname(path);
    const dir = base === trimmed(path) ? "" : dirname(path);
    return { root, dir, base, ext, name: ext ? base.slice(0, -ext.length) : base };
  };
  const format = ({ root = "", dir, base, name = "", ext = "" }) => {
    const end = base ?? `${name}${ext && !ext.startsWith(".") ? "." : ""}${ext}`;
    if (!dir) return root + end;
    return dir === root ? dir + end : `${dir}/${end}`;
  };
  const path = {
    basename, delimiter: ":", dirname, extname, format, isAbsolute, join, normalize, parse,
    relative, resolve, sep: "/",
  };
  return (path.posix = path);
}
