"""``rookery config``: every configuration value and its origin. ``rookery guest``: the guest that
it asks for."""

from __future__ import annotations

import os
from hashlib import sha3_256
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from rookery.actors.sandbox.python import GuestCache, cache_folder
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line, print_table
from rookery.ops.config import hide_secret

__all__ = ["app", "guest"]

app = App(name="config", help_format="plaintext")
guest = App(name="guest", help_format="plaintext")


@app.command
def show(
    *,
    origin: Annotated[bool, Parameter(help="Print the origin of each value.", negative="")] = False,
    options: Options = NO_OPTIONS,
) -> int:
    """Print the configuration; tokens are hidden."""
    rows = [
        (s.key, msgspec.to_builtins(hide_secret(s.key, s.value)), s.origin)
        for s in options.load().settings
    ]
    if options.json:
        print_json(
            {key: {"value": value, "origin": by} if origin else value for key, value, by in rows}
        )
        return 0
    columns = ["KEY", "VALUE", "ORIGIN"] if origin else ["KEY", "VALUE"]
    print_table(columns, [row[: len(columns)] for row in rows], empty="nothing is set")
    return 0


@guest.command
def build(
    *,
    packages: Annotated[
        str | None,
        Parameter(help="Packages, separated by commas; default: `sandbox.packages`."),
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Build the guest and store it in your cache, with pure-Python packages that pip fetches.

    A node whose `sandbox.packages` has the same list uses this build, if its realm has none yet.
    Packages that need compiled code are refused. Programs have no network: only this command and
    the first start of a node with a new list fetch packages."""
    listed = options.load().config.sandbox.packages if packages is None else packages.split(",")
    cache = GuestCache(cache_folder(os.environ), packages=filter(None, listed))
    component = cache.component(stub_wasi=True)
    digest, found = sha3_256(component).hexdigest(), cache.package_list()
    if options.json:
        print_json({"build": digest, "bytes": len(component), "packages": found})
        return 0
    print_line(f"guest {digest[:16]}, {len(component) / 1e6:.1f} MB")
    if found:
        rows = [[one.name, one.version, ", ".join(one.imports)] for one in found]
        print_table(["PACKAGE", "VERSION", "IMPORT"], rows, empty="")
    if packages is not None and cache.packages:
        print_line(f"for a node: packages = {msgspec.json.encode(cache.packages).decode()}")
        print_line("below [sandbox] in rookery.toml")
    return 0
