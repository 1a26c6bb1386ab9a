"""``rookery sessions create`` and ``limits``: the default limits of a session's runs.

The realm's maxima cap them when a run starts.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from cyclopts import Parameter

from rookery.ops.cli.access.offline_realm import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.ops.cli.program_args import find_language, parse_limits
from rookery.schemas.commands import ChangeLimits, CreateSession
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import SessionView
from rookery.schemas.run import SessionLimits

__all__ = ["create", "limit_words", "limits"]

ID = Annotated[str, Parameter(help="The session's id.")]


def create(
    session: ID,
    *,
    language: Annotated[str, Parameter(help="Language of its programs.")] = "python",
    limit: Annotated[
        list[str] | None, Parameter(help="A limit of each run: NAME=NUMBER.", negative="")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Create a session with its own limits, before its first run."""
    defaults = SessionLimits(**parse_limits(limit or (), "--limit "))
    body = CreateSession(language=find_language(language), limits=defaults)
    return _show(asyncio.run(_ask("create", session, body, options)), options)


def limits(
    session: ID,
    /,
    *changes: Annotated[str, Parameter(help="NAME=NUMBER; other limits stay the same.")],
    options: Options = NO_OPTIONS,
) -> int:
    """Change the limits of a session, from its next run on."""
    if not changes:
        known = ", ".join(SessionLimits.__struct_fields__)
        raise Refused("INVALID_ARGUMENT", "nothing to change", hint=f"NAME=NUMBER of {known}")
    body = ChangeLimits(**parse_limits(changes))
    return _show(asyncio.run(_ask("limits", session, body, options)), options)


def limit_words(limits: SessionLimits) -> str:
    """Limits as NAME=NUMBER."""
    return " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(limits).items())


async def _ask(verb: str, session: str, body: object, options: Options) -> SessionView:
    check_session_id(session)
    async with open_realm(options) as realm:
        return await realm.ask(verb, session, body, SessionView)


def _show(view: SessionView, options: Options) -> int:
    if options.json:
        print_json(view)
    else:
        meta = view.meta
        print_line(f"session {meta.id} ({meta.language}): {limit_words(meta.limits)}")
    return 0
