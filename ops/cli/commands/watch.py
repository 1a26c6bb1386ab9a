"""``rookery watch``: print facts as they are committed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated

from cyclopts import App, Parameter

from rookery.bus.ports import Filter
from rookery.ops.cli.access.realm_access import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_line
from rookery.ops.cli.rendering.fact_words import fact_lines, fact_selection

__all__ = ["app"]

app = App(name="watch", help_format="plaintext")


@app.default
def watch(
    *,
    session: Annotated[str | None, Parameter(help="Only facts of this session.")] = None,
    run: Annotated[str | None, Parameter(help="Only facts of this run.")] = None,
    family: Annotated[str | None, Parameter(help="Only facts of this family.")] = None,
    from_: Annotated[
        int | None, Parameter(name="--from", help="First sequence; default: new facts only.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Print a line for each fact until Ctrl-C; with --json, a JSON object."""
    try:
        asyncio.run(_follow(fact_selection(session, family, run), from_, options))
    except KeyboardInterrupt:
        return 0
    return 0


async def _follow(where: Filter, begin: int | None, options: Options) -> None:
    async with open_realm(options) as realm:
        after = await realm.journal.end() if begin is None else max(0, begin - 1)
        async with aclosing(realm.feed.follow(where, after)) as pages:
            async for page in pages:
                for stored in page:
                    for line in fact_lines(stored, where, json=options.json):
                        print_line(line)
