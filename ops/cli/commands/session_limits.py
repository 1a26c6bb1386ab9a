"""``rookery sessions create, limits``: what each run of a session may use, if it does not say so.

The node that has the session decides, and the realm's maxima cap it when a run starts.
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
    language: Annotated[str, Parameter(help="What its programs are written in.")] = "python",
    limit: Annotated[
        list[str] | None, Parameter(help="A limit of each run: NAME=NUMBER.", negative="")
    ] = None,
    options: Options = NO_OPTIONS,
) -> int:
    """Begin a session, with limits of its own, before its first run."""
    given = SessionLimits(**parse_limits(limit or (), "--limit "))
    asked = CreateSession(language=find_language(language), limits=given)
    return _show(asyncio.run(_ask("create", session, asked, options)), options)


def limits(
    session: ID,
    /,
    *changes: Annotated[str, Parameter(help="NAME=NUMBER; what is not named stays.")],
    options: Options = NO_OPTIONS,
) -> int:
    """Give a session other limits, from its next run on."""
    if not changes:
        known = ", ".join(SessionLimits.__struct_fields__)
        raise Refused("INVALID_ARGUMENT", "nothing to change", hint=f"NAME=NUMBER of {known}")
    asked = ChangeLimits(**parse_limits(changes))
    return _show(asyncio.run(_ask("limits", session, asked, options)), options)


def limit_words(limits: SessionLimits) -> str:
    """As they are typed."""
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
