"""``rookery config``: every configuration value and its origin."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_table
from rookery.ops.config import hide_secret

__all__ = ["app"]

app = App(name="config", help_format="plaintext")


@app.command
def show(
    *,
    origin: Annotated[bool, Parameter(help="Print the origin of each value.", negative="")] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Print the configuration; tokens are hidden."""
    rows = [(s.key, hide_secret(s.key, s.value), s.origin) for s in options.load().settings]
    if options.json:
        print_json(
            {key: {"value": value, "origin": by} if origin else value for key, value, by in rows}
        )
        return 0
    columns = ["KEY", "VALUE", "ORIGIN"] if origin else ["KEY", "VALUE"]
    print_table(columns, [row[: len(columns)] for row in rows], empty="nothing is set")
    return 0
