"""The node's client to tool workers: it sends a job once and polls until its outcome is known."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Final

import msgspec

from rookery.bus.clock import entropy
from rookery.bus.jetstream_api import NO_RESPONDERS, status_of
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.ports import Blobs
from rookery.bus.subjects import Subjects
from rookery.bus.workers.protocol import (
    CANCEL,
    CANCELLED,
    CATALOGUE,
    HEALTH,
    NOT_STARTED,
    UNKNOWN,
    AttemptQuery,
    JobNames,
    LargeBodies,
    body_blob,
    decode_outcome,
    is_answer_to,
    job_headers,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, Failed
from rookery.schemas.worker_protocol import (
    GRACE_MS,
    Job,
    JobAnswered,
    JobNotStarted,
    JobOutcome,
    JobOutcomeUnknown,
    WorkerHealth,
    WorkerReport,
    WorkerReports,
)

__all__ = [
    "NatsToolWorkers",
    "ResultInbox",
]

# --- result inbox ---------------------------------------------------------------------------------

# The subjects on which workers, and processes that serve hooks, answer one connection of a node.
#
# They are no inbox: a worker of a surface is allowed to publish to the results of this surface and
# to nothing else. The secret in them keeps workers from answering calls that they were not given.


_SECRET_BYTES: Final = 16


class ResultInbox:
    """Routes the messages of workers to their listeners. A message without one is dropped."""

    def __init__(
        self,
        connection: Connection,
        subjects: Callable[[str, str], str],
        on_dropped: Callable[[Message], None] = lambda _: None,
    ) -> None:
        """``subjects``: of the answers of a place, with a secret in them."""
        self._connection, self._subjects, self._on_dropped = connection, subjects, on_dropped
        self._secret = entropy(_SECRET_BYTES).hex()
        self._numbers = count(1)
        self._listeners: dict[str, Callable[[Message], None]] = {}
        self._subscription: Subscription | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        """Subscribe, once; it survives reconnects."""
        async with self._opening:
            if self._subscription is None:
                subject = self._subjects("*", self._secret)
                self._subscription = await self._connection.subscribe(subject, self._route)

    async def close(self) -> None:
        if self._subscription is not None:
            await self._subscription.cancel()
            self._subscription = None

    @contextmanager
    def listen(self, surface: str, on_message: Callable[[Message], None]) -> Iterator[str]:
        """A new subject whose messages go to ``on_message`` until the context ends."""
        results = self._subjects(surface, self._secret)
        subject = f"{results.removesuffix('*')}{next(self._numbers)}"
        self._listeners[subject] = on_message
        try:
            yield subject
        finally:
            del self._listeners[subject]

    def _route(self, messages: list[Message]) -> None:
        for message in messages:
            if (listener := self._listeners.get(message.subject)) is not None:
                listener(message)
            else:
                self._on_dropped(message)


# --- client ---------------------------------------------------------------------------------------

# Requests of core NATS are neither stored nor repeated, so a job executes at most once. An answer
# can be lost, with the server or with its worker. Every other second the node asks all workers of
# the surface for the jobs it waits for. A worker sends the answer of a finished job again; a job
# that its worker no longer reports has an unknown outcome before its deadline. ``protocol`` has the
# messages.


POLL_S: Final = 2.0
MISSED_POLLS_MAX: Final = 5
"""A busy worker may miss polls; after this many the job counts as lost."""
NAMES_MAX: Final = 1_000
"""Largest number of jobs in one message."""
DISCOVERY_S: Final = 1.0
LATE_REPLIES_S: Final = 0.3
RETRY_S: Final = 0.2

_health = msgspec.json.Decoder(WorkerHealth).decode


class _PendingJob:
    """A job without an outcome."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.completion: asyncio.Future[Message | JobOutcomeUnknown] = (
            asyncio.get_running_loop().create_future()
        )
        self.worker = ""
        """The worker that reported the job as running."""
        self.missed_polls = 0
        """Number of polls since then without such a report."""
        self.cancelled = False

    def complete(self, end: Message | JobOutcomeUnknown) -> None:
        if not self.completion.done():
            self.completion.set_result(end)


class NatsToolWorkers:
    """Port ``ToolWorkers``. To be used on the event loop of its connection."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        blobs: Blobs,
        *,
        pulse_s: float = POLL_S,
    ) -> None:
        self._connection, self._subjects, self._poll_s = connection, subjects, pulse_s
        self._blobs = blobs
        self._large_bodies = LargeBodies(connection, blobs)
        self._results = ResultInbox(connection, subjects.worker_results)
        self._pending: dict[str, _PendingJob] = {}
        self._remote_attempts: dict[str, tuple[str, str]] = {}
        """Surface and job of calls that another process sent and this one waits for."""
        self._poll_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Unsubscribe; pending jobs get no outcome."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.gather(self._poll_task, return_exceptions=True)
        await self._results.close()

    async def call(self, job: Job) -> JobOutcome:
        waiting = _PendingJob(job)
        await self._results.open()
        with self._results.listen(job.surface, waiting.complete) as reply:
            subject = self._subjects.job(job.surface, job.tool)
            message = Outgoing(subject, job.body, reply, job_headers(job))
            self._pending[reply] = waiting
            try:
                message = await self._large_bodies.pack(message)
                if waiting.cancelled:
                    return JobNotStarted("the call was cancelled")
                if not self._connection.send([message]):
                    return JobNotStarted("the node has no connection to the server")
                self._ensure_polling()
                async with asyncio.timeout((job.left_ms + GRACE_MS) / 1_000):
                    return await self._outcome_of(waiting)
            except TimeoutError:
                return JobOutcomeUnknown(f"no reply within {job.left_ms} ms")
            finally:
                del self._pending[reply]

    async def query_attempt(self, surface: str, call_id: str, attempt: int) -> WorkerReports:
        if not self._connection.connected:  # Without a connection silence proves nothing.
            raise Failed("SERVER_UNREACHABLE", "the workers cannot be queried about a call")
        query = AttemptQuery(call_id, attempt)
        self._remote_attempts.pop(call_id, None)
        answer, workers = None, []
        for message in await self._discover(surface, HEALTH, encode_json(JobNames(calls=(query,)))):
            if is_answer_to(message, query):
                answer = message
                continue
            with suppress(msgspec.MsgspecError):
                workers.append(self._report_of(surface, _health(message.body), query))
        if answer is None:
            return WorkerReports(workers=tuple(workers))
        body = await self._large_bodies.unpack(answer)
        return WorkerReports(workers=tuple(workers), answer=body, answer_blob=body_blob(answer))

    def _report_of(self, surface: str, health: WorkerHealth, query: AttemptQuery) -> WorkerReport:
        """One worker's report. The place of a running job is recorded for its cancellation."""
        state = None
        for report in health.calls:
            if (report.call, report.attempt) == (query.call, query.attempt):
                state = report.state
                if report.id:
                    self._remote_attempts[query.call] = surface, report.id
        return WorkerReport(worker=health.worker, state=state, remembers_ms=health.remembers_ms)

    def cancel(self, call_id: str) -> None:
        if call_id in self._remote_attempts:
            surface, name = self._remote_attempts[call_id]
            self._broadcast(surface, CANCEL, [name])
        for reply, waiting in self._pending.items():
            if waiting.job.call_id == call_id:
                waiting.cancelled = True
                self._broadcast(waiting.job.surface, CANCEL, [reply])

    async def catalogues(self, surface: str, patience_s: float) -> list[bytes]:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + patience_s
        while True:
            if found := await self._discover(surface):
                return [await self._large_bodies.unpack(message) for message in found]
            if loop.time() + RETRY_S > end_s:
                return []
            await asyncio.sleep(RETRY_S)

    async def delete_answer(self, blob: str) -> None:
        while True:
            try:
                await self._blobs.delete(blob)
                return
            except Failed as failure:
                if not CODES[failure.code].retryable:
                    raise
            await asyncio.sleep(RETRY_S)

    # --- answers ----------------------------------------------------------------------------------

    async def _outcome_of(self, waiting: _PendingJob) -> JobOutcome:
        reply = await waiting.completion
        if isinstance(reply, JobOutcomeUnknown):
            return reply
        job = waiting.job
        if status_of(reply) == NO_RESPONDERS:
            return JobNotStarted(f"no worker of {job.surface} serves {job.tool}", no_worker=True)
        outcome, reason = decode_outcome(reply)
        if outcome == NOT_STARTED:
            return JobNotStarted(reason.message, cancelled=reason.code == CANCELLED)
        if outcome == UNKNOWN:
            return JobOutcomeUnknown(reason.message)
        while True:
            try:
                return JobAnswered(await self._large_bodies.unpack(reply), body_blob(reply))
            except Failed as failure:
                if not CODES[failure.code].retryable:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _discover(
        self, surface: str, what: str = CATALOGUE, body: bytes = b""
    ) -> list[Message]:
        """The workers of a surface: those that reply shortly after the first."""
        found: list[Message] = []
        spoken = asyncio.Event()

        def listen(message: Message) -> None:
            if status_of(message) != NO_RESPONDERS:
                found.append(message)
            spoken.set()

        await self._results.open()
        with self._results.listen(surface, listen) as reply:
            if self._connection.send(
                [Outgoing(self._subjects.worker_broadcast(surface, what), body, reply)]
            ):
                with suppress(TimeoutError):
                    await asyncio.wait_for(spoken.wait(), DISCOVERY_S)
            if found:
                await asyncio.sleep(LATE_REPLIES_S)
        return found

    # --- polling of jobs --------------------------------------------------------------------------

    def _ensure_polling(self) -> None:
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_jobs())

    async def _poll_jobs(self) -> None:
        with ExitStack() as listening:
            replies: dict[str, str] = {}  # By surface.
            while self._pending:
                await asyncio.sleep(self._poll_s)
                for surface in {one.job.surface for one in self._pending.values()} - replies.keys():
                    listener = self._results.listen(surface, self._on_health)
                    replies[surface] = listening.enter_context(listener)
                if self._connection.connected:  # Otherwise no worker can reply.
                    self._poll_once(replies)

    def _poll_once(self, replies: Mapping[str, str]) -> None:
        names_of: dict[str, list[str]] = defaultdict(list)
        unwanted: dict[str, list[str]] = defaultdict(list)
        for name, waiting in self._pending.items():
            if waiting.worker:
                waiting.missed_polls += 1
            if waiting.missed_polls > MISSED_POLLS_MAX:
                waiting.complete(JobOutcomeUnknown(f"worker {waiting.worker} lost the job"))
            names_of[waiting.job.surface].append(name)
            if waiting.cancelled:
                unwanted[waiting.job.surface].append(name)
        for surface, names in unwanted.items():
            self._broadcast(surface, CANCEL, names)
        for surface, names in names_of.items():
            self._broadcast(surface, HEALTH, names, replies[surface])

    def _on_health(self, message: Message) -> None:
        """Handle a worker's report of its running jobs."""
        try:
            health = _health(message.body)
        except msgspec.MsgspecError:
            return
        for running in health.running:
            if (waiting := self._pending.get(running.id)) is not None:
                waiting.worker, waiting.missed_polls = health.worker, 0

    def _broadcast(self, surface: str, what: str, names: list[str], reply: str = "") -> None:
        subject = self._subjects.worker_broadcast(surface, what)
        for at in range(0, len(names), NAMES_MAX):
            body = encode_json(JobNames(jobs=tuple(names[at : at + NAMES_MAX])))
            self._connection.send([Outgoing(subject, body, reply)])
