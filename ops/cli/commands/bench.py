"""``rookery bench``: run the benchmarks of ``rookery.ops.bench``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rookery.ops.bench import BENCHES, run
from rookery.ops.bench.harness import Sync
from rookery.ops.cli.output import print_json, print_table
from rookery.schemas.errors import Refused

__all__ = ["app"]

app = App(name="bench", help_format="plaintext")


@app.default
def bench(
    *names: Annotated[str, Parameter(help="Benchmarks to run; default: list them.")],
    sync: Annotated[
        Sync | None, Parameter(help="Use only this sync setting of the server.")
    ] = None,
    rounds: Annotated[
        int, Parameter(help="Rounds; the medians are printed.", validator=Number(gte=1))
    ] = 3,
    json: Annotated[bool, Parameter(help="Print JSON.", negative="")] = False,
) -> int:
    """Run benchmarks on servers of their own; exit code 1 if a target is missed."""
    if not names and json:
        print_json(BENCHES)
        return 0
    if not names:
        print_table(["BENCH", "MEASURES"], BENCHES.items(), empty="no benches")
        return 0
    for name in names:
        if name not in BENCHES:
            known = ", ".join(BENCHES)
            raise Refused("INVALID_ARGUMENT", f"no bench {name!r}", hint=f"one of {known}")
    return run(names, sync=sync, as_json=json, rounds=rounds)
