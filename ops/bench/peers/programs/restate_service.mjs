// Restate's service: `node restate_service.mjs PORT TRACE NODE_MODULES`.
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";

const [, , port, trace, modules] = process.argv;
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new Promise((a, b) => { resolve = a; reject = b; });
  return { promise, resolve, reject };
}; // Node.js before 22.
const restate = createRequire(`${modules}/package.json`)("@restatedev/restate-sdk");
const record = (line) => { appendFileSync(trace, `${line}\n`); return line; };
const now = () => Number(process.hrtime.bigint()) / 1e9;

const session = restate.object({
  name: "session",
  handlers: {
    one: async (ctx, n) => await ctx.run("s", async () => 2),
    ten: async (ctx, n) => {
      let last = 0;
      for (let i = 0; i < 10; i++) last = await ctx.run(`s${i}`, async () => i);
      return last;
    },
    park: async (ctx, n) => {
      const { id, promise } = ctx.awakeable();
      await ctx.run("wait", async () => record(`parked ${n} ${id}`));
      const result = await promise;
      await ctx.run("end", async () => record(`ended ${n} ${now()}`));
      return result;
    },
  },
});
restate.serve({ services: [session], port: Number(port) });
