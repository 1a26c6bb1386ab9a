const e = new TextEncoder(), d = new TextDecoder(); console.log(e.encode("héllo 😀"), d.decode(e.encode("日本")), d.decode(new Uint8Array([255, 65])))
console.log(btoa("hello"), atob("aGk="), btoa(atob("/+8="))); try { btoa("日") } catch (x) { console.log(x.name) } try { atob("%") } catch (x) { console.log(x.name) }
