"""``rookery auth``: the credential of the realm's server."""

from __future__ import annotations

from cyclopts import App

from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.server_url import server_url

__all__ = ["app"]

app = App(name="auth", help_format="plaintext")


@app.command
def url(*, options: Options = NO_OPTIONS) -> int:
    """Print the server's URL with its credential, for a client: no other command prints it.

    A client with this URL may do everything that a node may do.
    """
    found = server_url(options.load().config)
    if options.json:
        print_json({"url": found})
    else:
        print_line(found)
    return 0
