"""Results of runs, read from the journal and the blob store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from rookery.bus.client.run_request import decode_result, not_executed_here
from rookery.bus.ports import BlobReader, Filter, JournalReads
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as of_session
from rookery.schemas.facts import turn as of_turn
from rookery.schemas.facts.run_progress import SESSION_ENDS, RunProgress, RunStage, TurnEnd
from rookery.schemas.replies import RunAnswer, RunReceipt
from rookery.schemas.run import RunResult

__all__ = ["complete_result", "read_past_result"]

F = TypeVar("F", bound=Fact)

_TURN: Final[FactCodec[Any]] = FactCodec(of_turn.RUN_FACTS)
_SESSION: Final[FactCodec[of_session.SessionFact]] = FactCodec(of_session.SESSION_FACTS)


async def complete_result(blobs: BlobReader, reply: Mapping[str, Any]) -> RunAnswer:
    """The result of a reply; a result that was too large to send is fetched."""
    answer = decode_result(reply)
    if answer.result_blob is UNSET:
        return answer
    result = await _stored_result(blobs, answer.result_blob)
    return RunAnswer.of(result, answer.run_id, answer.session_id)


async def read_past_result(
    journal: JournalReads, blobs: BlobReader, session: str, run_id: str, after: int = 0
) -> RunAnswer:
    """The result of an ended run, from the journal; ``Refused`` if the run has not ended.

    ``after`` is a sequence before the run's first fact, if one is known.
    """
    queued, progress = RunProgress(), RunProgress()
    async for fact in _facts(journal, _TURN, Filter("turn", session, run_id), after):
        if isinstance(fact, TurnEnd):
            return RunAnswer.of(await _result(blobs, fact), run_id, session)
        progress.apply_fact(fact)
    async for session_fact in _facts(journal, _SESSION, Filter("session", session, run_id), after):
        if isinstance(session_fact, of_session.RunCommitted):
            raise not_executed_here("committed")
        if (end := SESSION_ENDS.get(type(session_fact))) is not None:
            error = getattr(session_fact, "error", None) or None
            receipt = RunReceipt(
                run_id=run_id, input_id="", session_id=session, state=end.receipt, error=error
            )
            return RunAnswer.of_unstarted(receipt)
        queued.apply_fact(session_fact)
    if progress.stage is RunStage.UNKNOWN:
        progress = queued
    if progress.stage is RunStage.UNKNOWN:
        raise Refused("RUN_NOT_FOUND", f"no run {run_id[:80]!r} in session {session}")
    raise Refused(
        "GUARD_REJECTED",
        f"run {run_id} has no result yet: it {progress.words}",
        hint=f"rookery runs show {run_id}",
    )


async def _facts(
    journal: JournalReads, codec: FactCodec[F], where: Filter, after: int
) -> AsyncGenerator[F, None]:
    """The facts of one family and one run."""
    async with aclosing(journal.scan(where, after)) as pages:
        async for page in pages:
            for stored in page:
                for fact in codec.decode(stored.body):
                    if fact.run == where.run:
                        yield fact


async def _result(blobs: BlobReader, end: TurnEnd) -> RunResult:
    if end.result_blob is not UNSET:
        return await _stored_result(blobs, end.result_blob)
    if end.result is UNSET:
        raise not_executed_here("over")
    return end.result


async def _stored_result(blobs: BlobReader, digest: str) -> RunResult:
    return msgspec.json.decode(await blobs.get(digest), type=RunResult)
