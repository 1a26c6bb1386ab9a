"""``rookery sessions retire, recycle, reset``: which inputs a session takes.

They are inputs of the session's machine. A node refuses them while a run of the session is under
way.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from rookery.ops.cli.access.offline_realm import open_realm
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.output import print_json, print_line
from rookery.schemas.commands import HandleInput
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import SessionView

__all__ = ["recycle", "reset", "retire"]

ID = Annotated[str, Parameter(help="The session's id.")]


def retire(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Let a session finish its queued inputs and take no others; its memory stays."""
    return _apply("Retire", session, "takes no further inputs", options)


def recycle(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Let a retired session take inputs again, with its memory."""
    return _apply("recycle", session, "takes inputs again", options)


def reset(session: ID, *, options: Options = NO_OPTIONS) -> int:
    """Cancel the queued inputs of a session, and let it take new ones; its memory stays."""
    return _apply("Reset", session, "has an empty queue and takes inputs", options)


def _apply(on: str, session: str, outcome: str, options: Options) -> int:
    check_session_id(session)
    view = asyncio.run(_ask(on, session, options))
    if options.json:
        print_json(view)
    else:
        print_line(f"session {session} {outcome}")
    return 0


async def _ask(on: str, session: str, options: Options) -> SessionView:
    async with open_realm(options) as realm:
        return await realm.ask("admission", session, HandleInput(input=on), SessionView)
