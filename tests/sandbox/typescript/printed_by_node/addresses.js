const u = new URL("https://User:pa%20ss@EXAMPLE.com:8443/a/./b/../c d?x=1&y=é&x=2#frag")
console.log(u.href, u.origin, u.host, u.hostname, u.port, u.pathname, u.search, u.hash, u.username, u.password)
u.searchParams.append("z", "a b&c"); u.searchParams.set("x", "9"); u.searchParams.delete("y"); u.pathname = "/new path"; u.port = "443"; console.log(String(u))
console.log(new URL("../x?q#h", "http://h/a/b/c").href, new URL("//o/p", "https://h").href, URL.canParse("nope"), JSON.stringify({ u }))
try { new URL("nope") } catch (e) { console.log(e instanceof TypeError, e.message, e.code) }
const q = new URLSearchParams({ a: "1", b: "x y" }); q.append("a", "2"); console.log(q.toString(), q.getAll("a"), [...q], q.has("b"), q.size)
