// The methods of console that do more than print their arguments.
(part) => {
  const named = (label) => (label === undefined ? "default" : `${label}`);
  const known = new WeakMap();
  const ofRun = (run) => {
    if (!known.has(run)) known.set(run, { counts: new Map(), times: new Map() });
    return known.get(run);
  };

  return ({ state, out, err, clock, write }) => {
    const run = state(), { counts, times } = ofRun(run);
    const took = (label) => {
      if (!times.has(label)) return "";
      const ms = clock() - times.get(label);
      return `${label}: ${ms < 1000 ? `${Number(ms.toFixed(3))}ms` : `${(ms / 1000).toFixed(3)}s`}`;
    };
    const group = (...labels) => {
      if (labels.length) out(...labels);
      run.margin += "  ";
    };
    return {
      dir: (value, options) => write(part("inspect").inspect(value, options)),
      table: (data, columns) => write(part("inspect").table(data, columns)),
      trace: (...values) => err("Trace:", ...values),
      group,
      groupCollapsed: group,
      groupEnd: () => { run.margin = run.margin.slice(2); },
      count: (label) => {
        const name = named(label);
        counts.set(name, (counts.get(name) ?? 0) + 1);
        write(`${name}: ${counts.get(name)}`);
      },
      countReset: (label) => { counts.delete(named(label)); },
      time: (label) => { times.set(named(label), clock()); },
      timeLog: (label, ...values) => {
        const shown = took(named(label));
        if (shown) out(shown, ...values);
      },
      timeEnd: (label) => {
        const shown = took(named(label));
        if (shown) write(shown);
        times.delete(named(label));
      },
      assert: (fine, ...values) => {
        if (fine) return;
        const [first, ...others] = values;
        if (typeof first === "string") err(`Assertion failed: ${first}`, ...others);
        else err("Assertion failed", ...values);
      },
    };
  };
}
