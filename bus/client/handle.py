"""The handle of a run: the client follows it, reads its output and its result, and cancels it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import UNSET

from rookery.bus.client.retrying_request import RetryingRequest
from rookery.bus.client.run_request import decode_result, not_executed_here
from rookery.bus.nats import Connection, Message
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.ports import BlobReader, Filter, JournalReads
from rookery.bus.subjects import Subjects
from rookery.schemas.agents import DeltaKind
from rookery.schemas.codec import FactCodec, fact_name
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.facts import session as of_session
from rookery.schemas.facts import turn as of_turn
from rookery.schemas.facts.run_progress import (
    LAST_FACTS,
    SESSION_ENDS,
    RunProgress,
    RunStage,
    TurnEnd,
)
from rookery.schemas.facts.session import InputAccepted
from rookery.schemas.replies import RunAnswer, RunReceipt
from rookery.schemas.run import OutputMessage, OutputStream, RunResult

__all__ = [
    "AnswerText",
    "Fields",
    "Handle",
    "OutputFeed",
    "PrintedText",
    "complete_result",
    "no_reply",
    "read_past_result",
]

# --- output ---------------------------------------------------------------------------------------

# The output of runs as a client gets it while they go on.


log = logging.getLogger(__name__)

WAITING_MESSAGES_MAX: Final = 1_024
"""Of a feed that is not read; further ones are dropped, which the numbers show."""

_decode = msgspec.json.Decoder(OutputMessage).decode


class PrintedText(NamedTuple):
    """A piece of a run's output."""

    number: int
    """From 1 in each run; a number that is missing was lost, and is in the result."""
    stream: OutputStream
    text: str


class AnswerText(NamedTuple):
    """A piece of an answer of the run's model, while it is written."""

    step: int
    attempt: int
    kind: DeltaKind
    text: str
    cut: bool = False
    """The attempt leads to no answer: its pieces are void, and the text is empty."""


class OutputFeed:
    """The output of one session's runs, from the subscription on."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[OutputMessage] = asyncio.Queue(WAITING_MESSAGES_MAX)
        self._subscription: Subscription | None = None

    @classmethod
    async def open(cls, connection: Connection, subjects: Subjects, session: str) -> OutputFeed:
        feed = cls()
        subject = subjects.output(session)
        feed._subscription = await connection.subscribe(subject, feed._on_messages)
        return feed

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.cancel()
            self._subscription = None

    async def pieces(
        self, run_id: str, ended: asyncio.Future[Any]
    ) -> AsyncGenerator[PrintedText, None]:
        """The pieces of one run, each once, until ``ended`` is done and all are read."""
        last = 0
        while (message := await self._next(ended)) is not None:
            if message.run_id != run_id:
                continue
            for number, piece in enumerate(message.pieces, message.number):
                if number > last:
                    last = number
                    yield PrintedText(number, piece.stream, piece.text)

    async def answers(
        self, run_id: str, ended: asyncio.Future[Any]
    ) -> AsyncGenerator[AnswerText, None]:
        """The pieces of the answers of one run's model, each once, until ``ended`` is done and all
        are read. Those of a later attempt replace the earlier ones."""
        last = (0, 0, 0)
        while (message := await self._next(ended)) is not None:
            found = message.answer
            if message.run_id != run_id or found is UNSET:
                continue
            for number, delta in enumerate(found.deltas, found.number):
                if (place := (found.step, found.attempt, number)) > last:
                    last = place
                    yield AnswerText(found.step, found.attempt, delta.kind, delta.text)
            if found.cut:
                yield AnswerText(found.step, found.attempt, DeltaKind.TEXT, "", cut=True)

    async def _next(self, ended: asyncio.Future[Any]) -> OutputMessage | None:
        """The next message; ``None`` at the end."""
        if not self._messages.empty():
            return self._messages.get_nowait()
        if ended.done():
            return None
        getting: asyncio.Future[Any] = asyncio.ensure_future(self._messages.get())
        try:
            await asyncio.wait({getting, ended}, return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                message: OutputMessage = getting.result()
                return message
        finally:
            getting.cancel()
        return None if self._messages.empty() else self._messages.get_nowait()

    def _on_messages(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                self._messages.put_nowait(_decode(message.body))
            except msgspec.MsgspecError as error:
                log.warning("output that is not readable dropped: %s", error)
            except asyncio.QueueFull:
                return


# --- handle ---------------------------------------------------------------------------------------

# The handle of a submitted run: the client follows, awaits and cancels the run with it.
#
# The run's id comes from the fact that accepted it or from the reply, whichever is first. The run
# does not depend on its handle.


Fields = dict[str, Any]

_ACCEPTED: Final = fact_name(InputAccepted)


class HandleClient(Protocol):
    """The methods of its client that a handle uses."""

    def events(
        self, family: str | None = None, key: str | None = None, run: str | None = None,
        after: int = 0,
    ) -> AsyncGenerator[Fields, None]: ...  # fmt: skip

    async def cancel(
        self, session: str, run_id: str, *, reason: str = "", now: bool = False
    ) -> Fields: ...

    async def follow_output(self, session: str) -> OutputFeed: ...

    async def complete_result(self, reply: Mapping[str, Any], /) -> RunAnswer:
        """The result of a reply; a result in the blob store is fetched."""

    def spawn(self, work: Coroutine[Any, Any, Fields]) -> asyncio.Task[Fields]:
        """Run ``work`` as a task until it is done or the client is closed."""


class Handle:
    """One run. ``message_id`` is its idempotency key."""

    def __init__(
        self,
        client: HandleClient,
        session: str,
        message_id: str,
        request: RetryingRequest,
        after: int,
        *,
        output: OutputFeed | None,
    ) -> None:
        self.session, self.message_id = session, message_id
        self.run_id = ""
        """Empty until it is known; ``accepted`` waits for it."""
        self._client, self._request, self._after = client, request, after
        self._reply_task: asyncio.Task[Fields] | None = None
        self._events_after: int | None = None
        self._output = output

    @property
    def last_error(self) -> CodedError | None:
        """Why the request has no reply yet, if that is known."""
        return self._request.last_error

    def set_max_absence(self, absence_s_max: float) -> None:
        """From now on, fail when no node has replied for this long."""
        self._request.absence_s_max = absence_s_max

    async def result(self, timeout_s: float | None = None) -> RunAnswer:
        """The result of the run, also of a failed one; ``Refused`` if it was not accepted."""
        return await self._client.complete_result(await self.reply(timeout_s))

    async def reply(self, timeout_s: float | None = None) -> Fields:
        """The node's final reply; if the run's driver is outside, it is a receipt."""
        try:
            async with asyncio.timeout(timeout_s):
                reply = await asyncio.shield(self.reply_task())
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        self.run_id = self.run_id or str(reply.get("run_id", ""))
        return reply

    async def accepted(self, timeout_s: float | None = None) -> str:
        """The run's id, as soon as the session has accepted it; ``Refused`` if it refuses."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._locate()
        except TimeoutError:
            raise no_reply(f"run {self.message_id}", timeout_s) from None
        return self.run_id

    async def cancel(self, *, now: bool = True, reason: str = "") -> Fields:
        """End the run now, or at its next boundary if ``now`` is false.

        The default of ``Client.cancel`` and of the verb ``cancel`` is the next boundary.
        """
        await self.accepted()
        return await self._client.cancel(self.session, self.run_id, reason=reason, now=now)

    async def events(self) -> AsyncGenerator[Fields, None]:
        """The facts of this run, from its acceptance to its last fact."""
        after = await self._locate()
        facts = self._client.events(key=self.session, run=self.run_id, after=after)
        async with aclosing(facts):
            async for fact in facts:
                yield fact
                if _name_of(fact) in LAST_FACTS:
                    return

    async def output(self) -> AsyncGenerator[PrintedText, None]:
        """What the run prints, while it goes on; the result has the whole. Pieces that were printed
        before the first call are missing, unless the run was begun with ``output``."""
        async with (
            self._feed() as (feed, ended),
            aclosing(feed.pieces(self.run_id, ended)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def answers(self) -> AsyncGenerator[AnswerText, None]:
        """What the run's model writes, while it writes it; ``model.answered`` has the whole. It
        takes the place of ``output``, and begins as that does."""
        async with (
            self._feed() as (feed, ended),
            aclosing(feed.answers(self.run_id, ended)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    @asynccontextmanager
    async def _feed(self) -> AsyncIterator[tuple[OutputFeed, asyncio.Future[Any]]]:
        """The feed of the session's output, and what is done when the run has ended."""
        feed = self._output or await self._client.follow_output(self.session)
        self._output = None
        try:
            replying = self.reply_task()
            await self.accepted()
            yield feed, replying
        finally:
            await feed.close()

    def reply_task(self) -> asyncio.Task[Fields]:
        """The task that repeats the request until it has a reply; the first call starts it."""
        if self._reply_task is None:
            self._reply_task = self._client.spawn(self._request.result())
        return self._reply_task

    async def _locate(self) -> int:
        """Learn the run's id; return a sequence below its first fact."""
        if self._events_after is None:
            self._events_after = await self._find_start()
        return self._events_after

    async def _find_start(self) -> int:
        replying, finding = self.reply_task(), asyncio.create_task(self._find_fact())
        try:
            await asyncio.wait({replying, finding}, return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                fact = finding.result()
                self.run_id = str(fact["run"])
                return self._after if _name_of(fact) == _ACCEPTED else 0
            self.run_id = str(replying.result()["run_id"])
            return 0
        finally:
            finding.cancel()

    async def _find_fact(self) -> Fields:
        """The first fact of a run that this message has caused.

        It accepts the run, or asks for another reply if the run was accepted before.
        """
        facts = self._client.events("session", self.session, after=self._after)
        async with aclosing(facts):
            async for fact in facts:
                if self.message_id in fact.get("cause", ()) and fact.get("run"):
                    return fact
        raise AssertionError("facts never end")


def _name_of(fact: Fields) -> str:
    return str(fact["type"]).rpartition(".")[0]


def no_reply(request: str, timeout_s: float | None) -> Failed:
    return Failed(
        "NO_ANSWER",
        f"{request}: no answer within {timeout_s} s",
        hint="it may still take effect: look first (rookery runs list, rookery approvals list), or "
        "ask again with the same id",
    )


# --- run results ----------------------------------------------------------------------------------

# Results of runs, read from the journal and the blob store.


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
