"""``rookery version``: the versions to name in a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import version

from cyclopts import App

from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line

__all__ = ["app"]

app = App(name="version", help_format="plaintext")


@app.default
def show(*, options: Options = NO_OPTIONS) -> int:
    """Print the versions of Rookery and Python."""
    versions = {"rookery": version("rookery"), "python": platform.python_version()}
    if options.json:
        print_json(versions)
    else:
        print_line(" ".join(f"{name} {number}" for name, number in versions.items()))
    return 0
