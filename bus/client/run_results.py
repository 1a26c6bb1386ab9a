"""Results of runs: large replies completed from blobs, and past runs read from the journal."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from rookery.bus.client.run_request import decode_result, not_executed_here
from rookery.bus.ports import Blobs, Filter, Journal
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as of_session
from rookery.schemas.facts import turn as of_turn
from rookery.schemas.replies import RunAnswer, RunReceipt
from rookery.schemas.run import RunResult

__all__ = ["complete_result", "read_past_result"]

F = TypeVar("F", bound=Fact)

_TURN: Final[FactCodec[of_turn.TurnFact]] = FactCodec(of_turn.TURN_FACTS)
_UNSTARTED: Final[dict[type, str]] = {
    of_session.InputCancelled: "cancelled",
    of_session.InputRefused: "refused",
    of_session.RunRolledBack: "rolled_back",
    of_session.RunFailed: "failed",
}
_SESSION: Final[FactCodec[of_session.SessionFact]] = FactCodec(of_session.SESSION_FACTS)


async def complete_result(blobs: Blobs, reply: Mapping[str, Any]) -> RunAnswer:
    """The result of a run that a node drove, fetched from the blob store if it was too large to be
    sent."""
    answer = decode_result(reply)
    if answer.result_blob is UNSET:
        return answer
    result = await _stored_result(blobs, answer.result_blob)
    return RunAnswer.of(result, answer.run_id, answer.session_id)


async def read_past_result(
    journal: Journal, blobs: Blobs, session: str, run_id: str, after: int = 0
) -> RunAnswer:
    """The result of a past run; ``Refused`` if the run has not ended. ``after``: a sequence before
    the run began, if known."""
    progress = ""
    async for fact in _facts(journal, _TURN, Filter("turn", session, run_id), after):
        match fact:
            case of_turn.Completed() | of_turn.Failed() | of_turn.Cancelled():
                return RunAnswer.of(await _result(blobs, fact), run_id, session)
            case of_turn.Parked():
                progress = f"is parked: {fact.code}"
            case _:
                progress = "is in progress"
    async for ended in _facts(journal, _SESSION, Filter("session", session, run_id), after):
        if (state := _UNSTARTED.get(type(ended))) is not None:
            error = getattr(ended, "error", None) or None
            receipt = RunReceipt(
                run_id=run_id, input_id="", session_id=session, state=state, error=error
            )
            return RunAnswer.of_unstarted(receipt)
        if isinstance(ended, of_session.RunCommitted):
            raise not_executed_here("committed")
        progress = progress or "waits for its session"
    if not progress:
        raise Refused("RUN_NOT_FOUND", f"no run {run_id[:80]!r} in session {session}")
    raise Refused(
        "GUARD_REJECTED",
        f"run {run_id} has no result yet: it {progress}",
        hint=f"rookery runs show {run_id}",
    )


async def _facts(
    journal: Journal, codec: FactCodec[F], where: Filter, after: int
) -> AsyncGenerator[F, None]:
    """The facts of one family about one run."""
    async with aclosing(journal.scan(where, after)) as pages:
        async for page in pages:
            for stored in page:
                for fact in codec.decode(stored.body):
                    if fact.run == where.run:
                        yield fact


async def _result(
    blobs: Blobs, end: of_turn.Completed | of_turn.Failed | of_turn.Cancelled
) -> RunResult:
    if end.result_blob is not UNSET:
        return await _stored_result(blobs, end.result_blob)
    if end.result is UNSET:
        raise not_executed_here("over")
    return end.result


async def _stored_result(blobs: Blobs, digest: str) -> RunResult:
    return msgspec.json.decode(await blobs.get(digest), type=RunResult)
