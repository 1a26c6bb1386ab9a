"""``rookery runs result``: the result of a past run, read from the journal without a node."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from cyclopts import Parameter
from msgspec import UNSET

from rookery.bus.client import read_past_result
from rookery.bus.ports import Filter
from rookery.ops.cli.access.local_server import local_server
from rookery.ops.cli.access.offline_realm import OfflineRealm, open_realm
from rookery.ops.cli.commands.runs import find_run, sequence_before
from rookery.ops.cli.options import NO_OPTIONS, Options
from rookery.ops.cli.rendering.run_result import show_result
from rookery.schemas.codec import FactCodec
from rookery.schemas.errors import Refused
from rookery.schemas.facts.session import SESSION_FACTS, InputAccepted, SessionFact
from rookery.schemas.lists import RunView
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import RunRequest

__all__ = ["result"]

CODEC: FactCodec[SessionFact] = FactCodec(SESSION_FACTS)

ID = Annotated[str, Parameter(help="The run's id.")]


def result(run: ID, *, options: Options = NO_OPTIONS) -> int:
    """Print the result of a past run, as `rookery run` does."""
    with local_server(options):
        answer, code = asyncio.run(_result(run, options))
    return show_result(answer, code, json=options.json)


async def _result(run_id: str, options: Options) -> tuple[RunAnswer, str]:
    """The result, and the program."""
    async with open_realm(options) as realm:
        view = await find_run(realm, run_id)
        if not view.status.is_end:
            raise _not_ended_error(view)
        after = sequence_before(view)
        answer = await read_past_result(realm.journal, realm.blobs, view.session_id, run_id, after)
        return answer, await _code(realm, view)


async def _code(realm: OfflineRealm, view: RunView) -> str:
    """The program of an accepted run."""
    where = Filter("session", view.session_id, view.run_id)
    async for page in realm.journal.scan(where, sequence_before(view)):
        for fact in (fact for stored in page for fact in CODEC.decode(stored.body)):
            if isinstance(fact, InputAccepted) and fact.run == view.run_id:
                if fact.request_blob is not UNSET:
                    stored_request = await realm.blobs.get(fact.request_blob)
                    return msgspec.json.decode(stored_request, type=RunRequest).code
                return "" if fact.request is UNSET else fact.request.code
    return ""


def _not_ended_error(view: RunView) -> Refused:
    wait = view.waits_for
    if wait is None:
        state, hint = f"it is {view.status}", f"rookery runs show {view.run_id}"
    else:
        state, hint = f"it waits for {wait.what} ({wait.who})", wait.command
    text = f"run {view.run_id} has no result yet: {state}"
    return Refused("GUARD_REJECTED", text, hint=hint)
