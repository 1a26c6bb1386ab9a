"""A node's side of tool workers: a job is sent once, and asked after until it is answered.

Requests of core NATS are neither stored nor repeated, so a job is worked on at most once. An answer
can get lost, with the server or with its worker: every other second all workers of the surface are
asked who runs what is still waited for. A finished job's answer is then sent again; a job whose
worker stops saying that it runs it is given up before its time. What to do about an unknown outcome
is not decided here. The wire is ``jobs``'.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Final

import msgspec

from rookery.bus.nats import NO_RESPONDERS, Connection, Message, Outgoing, status_of
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

__all__ = ["NatsToolWorkers"]

POLL_S: Final = 2.0
MISSED_POLLS_MAX: Final = 5
"""A worker may be too busy to speak; one that says nothing of a job so often has lost it."""
NAMES_MAX: Final = 1_000
"""Of jobs, in one message."""
DISCOVERY_S: Final = 1.0
LATE_REPLIES_S: Final = 0.3
RETRY_S: Final = 0.2

_health = msgspec.json.Decoder(WorkerHealth).decode


class _PendingJob:
    """A job until it has come to something."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.completion: asyncio.Future[Message | JobOutcomeUnknown] = (
            asyncio.get_running_loop().create_future()
        )
        self.worker = ""
        """Who said that it runs it."""
        self.missed_polls = 0
        """How often nobody has said so since."""
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
        self._large_bodies = LargeBodies(connection, blobs)
        self._pending: dict[str, _PendingJob] = {}
        self._remote_attempts: dict[str, tuple[str, str]] = {}
        """Surface and job of calls that another process sent and this one waits for."""
        self._poll_task: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Nobody is told anything any more."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.gather(self._poll_task, return_exceptions=True)

    async def call(self, job: Job) -> JobOutcome:
        waiting = _PendingJob(job)
        with self._connection.replies.listen(waiting.complete) as reply:
            subject = self._subjects.job(job.surface, job.tool)
            message = Outgoing(subject, job.body, reply, job_headers(job))
            self._pending[reply] = waiting
            try:
                message = await self._large_bodies.pack(message)
                if waiting.cancelled:
                    return JobNotStarted("nobody wants it any more")
                if not self._connection.send([message]):
                    return JobNotStarted("there is no connection to the server")
                self._ensure_polling()
                async with asyncio.timeout((job.left_ms + GRACE_MS) / 1_000):
                    return await self._outcome_of(waiting)
            except TimeoutError:
                return JobOutcomeUnknown(f"no answer came within {job.left_ms} ms")
            finally:
                del self._pending[reply]

    async def query_attempt(self, surface: str, call_id: str, attempt: int) -> WorkerReports:
        if not self._connection.connected:  # Silence would say nothing of workers.
            raise Failed("SERVER_UNREACHABLE", "the workers cannot be asked after a call")
        asked = AttemptQuery(call_id, attempt)
        self._remote_attempts.pop(call_id, None)
        answer, workers = None, []
        for message in await self._discover(surface, HEALTH, encode_json(JobNames(calls=(asked,)))):
            if is_answer_to(message, asked):
                answer = message
                continue
            with suppress(msgspec.MsgspecError):
                workers.append(self._report_of(surface, _health(message.body), asked))
        body = None if answer is None else await self._large_bodies.unpack(answer)
        return WorkerReports(workers=tuple(workers), answer=body)

    def _report_of(self, surface: str, health: WorkerHealth, asked: AttemptQuery) -> WorkerReport:
        """What one worker said; where the job runs is kept, so that it can be cancelled."""
        state = None
        for said in health.calls:
            if (said.call, said.attempt) == (asked.call, asked.attempt):
                state = said.state
                if said.id:
                    self._remote_attempts[asked.call] = surface, said.id
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

    # --- answers ----------------------------------------------------------------------------------

    async def _outcome_of(self, waiting: _PendingJob) -> JobOutcome:
        told = await waiting.completion
        if isinstance(told, JobOutcomeUnknown):
            return told
        job = waiting.job
        if status_of(told) == NO_RESPONDERS:
            return JobNotStarted(f"no worker of {job.surface} serves {job.tool}", no_worker=True)
        outcome, why = decode_outcome(told)
        if outcome == NOT_STARTED:
            return JobNotStarted(why.message, cancelled=why.code == CANCELLED)
        if outcome == UNKNOWN:
            return JobOutcomeUnknown(why.message)
        while True:
            try:
                return JobAnswered(await self._large_bodies.unpack(told))
            except Failed as failure:
                if not CODES[failure.code].retryable:
                    raise
            await asyncio.sleep(RETRY_S)

    async def _discover(
        self, surface: str, what: str = CATALOGUE, body: bytes = b""
    ) -> list[Message]:
        """Who of a surface is there: everybody who speaks shortly after the first."""
        found: list[Message] = []
        spoken = asyncio.Event()

        def listen(message: Message) -> None:
            if status_of(message) != NO_RESPONDERS:
                found.append(message)
            spoken.set()

        with self._connection.replies.listen(listen) as reply:
            if self._connection.send(
                [Outgoing(self._subjects.worker_broadcast(surface, what), body, reply)]
            ):
                with suppress(TimeoutError):
                    await asyncio.wait_for(spoken.wait(), DISCOVERY_S)
            if found:
                await asyncio.sleep(LATE_REPLIES_S)
        return found

    # --- asking after jobs ------------------------------------------------------------------------

    def _ensure_polling(self) -> None:
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_jobs())

    async def _poll_jobs(self) -> None:
        with self._connection.replies.listen(self._on_health) as reply:
            while self._pending:
                await asyncio.sleep(self._poll_s)
                if self._connection.connected:  # Else nobody can say anything.
                    self._poll_once(reply)

    def _poll_once(self, reply: str) -> None:
        asked: dict[str, list[str]] = defaultdict(list)
        unwanted: dict[str, list[str]] = defaultdict(list)
        for name, waiting in self._pending.items():
            if waiting.worker:
                waiting.missed_polls += 1
            if waiting.missed_polls > MISSED_POLLS_MAX:
                waiting.complete(JobOutcomeUnknown(f"the worker {waiting.worker} was lost with it"))
            asked[waiting.job.surface].append(name)
            if waiting.cancelled:
                unwanted[waiting.job.surface].append(name)
        for surface, names in unwanted.items():
            self._broadcast(surface, CANCEL, names)
        for surface, names in asked.items():
            self._broadcast(surface, HEALTH, names, reply)

    def _on_health(self, message: Message) -> None:
        """A worker says what it runs."""
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
