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
from rookery.ops.cli.rendering.fact_lines import fact_lines, fact_selection
from rookery.schemas.errors import Refused
from rookery.schemas.event_index import FAMILY_INDEXES
from rookery.schemas.events import EventCursor, EventFilter
from rookery.schemas.seed.refs import PrivacyClass

__all__ = ["app"]

app = App(name="watch", help_format="plaintext")


@app.default
def watch(
    *,
    session: Annotated[str | None, Parameter(help="Only facts of this session.")] = None,
    run: Annotated[str | None, Parameter(help="Only facts of this run.")] = None,
    family: Annotated[str | None, Parameter(help="Only facts of this family.")] = None,
    kind: Annotated[
        list[str] | None,
        Parameter(help="Only this kind, as tool.completed; may be repeated.", negative=""),
    ] = None,
    privacy: Annotated[
        list[PrivacyClass] | None,
        Parameter(help="Only facts of this privacy class; may be repeated.", negative=""),
    ] = None,
    terminal: Annotated[
        bool, Parameter(help="Only what ends a run, a call, an approval ...", negative="")
    ] = False,
    from_: Annotated[
        int | None, Parameter(name="--from", help="First sequence; default: new facts only.")
    ] = None,
    cursor: Annotated[
        str | None, Parameter(help="Continue behind a line, by its cursor in --json.")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Print a line for each fact until Ctrl-C; with --json, a JSON object.

    A cursor belongs to its filter: continue with the same options."""
    where = fact_selection(session, family, run)
    only = EventFilter.of(
        run_ids=None if run is None else [run],
        session_ids=None if session is None else [session],
        families=None if family is None else [family],
        kinds=[_kind(text) for text in kind or ()],
        privacy_classes=privacy,
        terminal_only=terminal,
    )
    behind = None if cursor is None else EventCursor.parse(cursor)
    if behind is not None:
        behind.require(only)
        from_ = behind.sequence
    try:
        asyncio.run(_follow(where, only, from_, behind, options))
    except KeyboardInterrupt:
        return 0
    return 0


def _kind(text: str) -> str:
    """``tool.completed`` as the index has it; ``Refused`` for a kind that no fact has."""
    family, _, name = text.replace(".", "_", 1).partition("_")
    index = FAMILY_INDEXES.get(family)
    known = () if index is None else sorted(index.ends | index.steps)
    if name not in known:
        names = ", ".join(f"{family}.{one}" for one in known) or ", ".join(sorted(FAMILY_INDEXES))
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is no kind of fact", hint=names)
    return f"{family}_{name}"


async def _follow(
    where: Filter,
    only: EventFilter,
    begin: int | None,
    behind: EventCursor | None,
    options: Options,
) -> None:
    async with open_realm(options) as realm:
        after = await realm.journal.end() if begin is None else max(0, begin - 1)
        async with aclosing(realm.feed.follow(where, after)) as pages:
            async for page in pages:
                for stored in page:
                    lines = fact_lines(stored, where, json=options.json, only=only, behind=behind)
                    for line in lines:
                        print_line(line)
