"""The worker's endpoint for its surface, with its record of attempts and answers."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
import nats.errors
from msgspec.structs import replace

from rookery.bus.event_loop import TaskSet
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.subjects import Subjects, decode_token
from rookery.bus.workers.protocol import (
    CANCEL,
    CANCELLED,
    CATALOGUE,
    HEALTH,
    NOT_STARTED,
    QUEUE,
    UNKNOWN,
    BodyStore,
    JobNames,
    LargeBodies,
    decode_job,
    encode_no_result,
    readdressed_answer,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError
from rookery.schemas.worker_protocol import (
    AttemptReport,
    AttemptState,
    Job,
    JobAnswer,
    RunningJob,
    WorkerCatalogue,
    WorkerHealth,
)

__all__ = [
    "AGE_S",
    "CALLS_MAX",
    "CANCELLED_MAX",
    "AttemptRegistry",
    "NatsWorkerEndpoint",
]

# --- attempt registry -----------------------------------------------------------------------------

# A worker's record of its calls, by the id that all attempts of a call share.
#
# A job may arrive late: its node was cut off, and another node continued the call. So a worker
# records the last attempt of each call, and refuses earlier and cancelled ones. A node that takes a
# call over queries the state of an attempt; the query cancels an attempt that has not begun. The
# class reads no clock: the time is an argument, in seconds of any clock that does not run
# backwards.
#
# The limits are ``CALLS_MAX`` calls and ``CANCELLED_MAX`` cancelled ones, for ``AGE_S`` or the
# longest time any job had, whichever is longer. ``remembers_ms`` says how far back the record is
# complete.


CALLS_MAX: Final = 50_000
"""About 20 MB."""
CANCELLED_MAX: Final = 10_000
AGE_S: Final = 3_600.0


class _Attempt(msgspec.Struct, gc=False):
    """The last attempt of a call."""

    number: int
    job_id: str
    state: AttemptState
    at_s: float
    """Time of the last change of its state."""


class _CancelledAttempt(NamedTuple):
    number: int
    """This attempt and earlier ones are cancelled."""
    at_s: float


class AttemptRegistry:
    """The attempts of one worker."""

    def __init__(self, now_s: float, *, calls_max: int = CALLS_MAX) -> None:
        self._calls_max, self._age_s, self._complete_since_s = calls_max, AGE_S, now_s
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()
        """In order of their last change."""
        self._cancelled: OrderedDict[str, _CancelledAttempt] = OrderedDict()

    def reason_to_refuse(self, job: Job) -> str:
        """Why the job may not begin; empty if it may."""
        called_off = self._cancelled.get(job.call_id)
        if called_off is not None and job.attempt <= called_off.number:
            return f"attempt {job.attempt} of the call was cancelled"
        last = self._attempts.get(job.call_id)
        if last is not None and job.attempt < last.number:
            return f"attempt {last.number} of the call came before attempt {job.attempt}"
        return ""

    def begin(self, job: Job, now_s: float) -> None:
        """Record the start of the job. A call without an id cannot be recorded."""
        self._age_s = max(self._age_s, job.left_ms / 1_000)
        last = self._attempts.get(job.call_id)
        again = last is not None and last.number == job.attempt
        if job.call_id and not (again and last and last.state is not AttemptState.NOT_STARTED):
            self._attempts[job.call_id] = _Attempt(job.attempt, job.id, AttemptState.RUNNING, now_s)
            self._attempts.move_to_end(job.call_id)
            self._evict(now_s)

    def end(self, job: Job, state: AttemptState, now_s: float) -> None:
        """Record the end of the job."""
        last = self._attempts.get(job.call_id)
        if last is not None and last.job_id == job.id:
            last.state, last.at_s = state, now_s
            self._attempts.move_to_end(job.call_id)

    def query_or_cancel(self, call_id: str, number: int, now_s: float) -> tuple[AttemptState, str]:
        """State of an attempt, and its job. An attempt that has not begun is cancelled."""
        last = self._attempts.get(call_id)
        if last is not None and last.number > number:
            return AttemptState.UNKNOWN, ""
        if (
            last is not None
            and last.number == number
            and last.state is not AttemptState.NOT_STARTED
        ):
            return last.state, last.job_id
        known = self._cancelled.pop(call_id, None)
        number = number if known is None else max(number, known.number)
        self._cancelled[call_id] = _CancelledAttempt(number, now_s)
        self._evict(now_s)
        return AttemptState.NOT_STARTED, ""

    def retention_ms(self, now_s: float) -> int:
        """How far back the record is complete."""
        return max(0, int(1_000 * (now_s - self._complete_since_s)))

    def _evict(self, now_s: float) -> None:
        """Remove the oldest attempts, except running ones."""
        while self._attempts:
            call_id, oldest = next(iter(self._attempts.items()))
            if not (len(self._attempts) > self._calls_max or oldest.at_s < now_s - self._age_s):
                break
            if oldest.state is AttemptState.RUNNING:
                self._attempts.move_to_end(call_id)
                break
            del self._attempts[call_id]
            self._complete_since_s = max(self._complete_since_s, oldest.at_s)
        while self._cancelled:
            oldest_off = next(iter(self._cancelled.values()))
            if len(self._cancelled) <= CANCELLED_MAX and oldest_off.at_s >= now_s - self._age_s:
                break
            self._cancelled.popitem(last=False)


# --- server ---------------------------------------------------------------------------------------

# The worker's endpoint for its surface: receives jobs, sends answers, and stores recent answers.
#
# The server gives a job to one worker of the surface and forgets it. An answer may be lost with the
# connection, so the endpoint stores recent answers and repeats one on request. ``attempt_registry``
# decides which late attempts are refused. The worker decides how many jobs to accept.


log = logging.getLogger(__name__)

RECENT_ANSWERS_MAX: Final = 1_000
RECENT_ANSWERS_BYTES_MAX: Final = 8 << 20
RETRY_S: Final = 0.2
FLUSH_S: Final = 2

_job_names = msgspec.json.Decoder(JobNames).decode


class _OpenJob(NamedTuple):
    job: Job
    until_s: float
    """Deadline of the job."""


class NatsWorkerEndpoint:
    """Port ``WorkerEndpoint``. To be used on the event loop of its connection."""

    def __init__(
        self, connection: Connection, subjects: Subjects, blobs: BodyStore, surface: str
    ) -> None:
        self._connection, self._subjects, self._surface = connection, subjects, surface
        self._large_bodies, self._recent_answers = LargeBodies(connection, blobs), _RecentAnswers()
        self._attempts: AttemptRegistry
        self._catalogue = Outgoing("", b"")
        self._worker = ""
        self._open_jobs: dict[str, _OpenJob] = {}
        self._on_job: Callable[[Job], None] = _ignore
        self._on_cancel: Callable[[str], None] = _ignore
        self._job_subscriptions: list[Subscription] = []
        self._broadcast_subscriptions: list[Subscription] = []
        self._fetch_tasks = TaskSet()
        self._draining = False

    async def open(
        self, catalogue: WorkerCatalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        self._worker, self._on_job, self._on_cancel = catalogue.worker, take, cancel
        self._attempts = AttemptRegistry(_now_s())
        self._catalogue = await self._large_bodies.pack(Outgoing("", encode_json(catalogue)))
        subscribe, subjects = self._connection.subscribe, self._subjects
        for tool in catalogue.tools:  # Before the catalogue, so that a visible worker is callable.
            subject = subjects.job(self._surface, tool.capability.name)
            self._job_subscriptions.append(await subscribe(subject, self._on_jobs, queue=QUEUE))
        self._broadcast_subscriptions.append(
            await subscribe(subjects.worker_broadcast(self._surface, "*"), self._on_broadcast)
        )

    async def reply(self, job: Job, body: bytes) -> None:
        try:
            await self._send_with_retry(job, Outgoing(job.id, body), AttemptState.ENDED)
        except CodedError as error:
            await self._send_error(job, error)

    def reject(self, job: Job, reason: str) -> None:
        answer = encode_no_result(job.id, NOT_STARTED, "WORKER_UNAVAILABLE", reason)
        self._finish(job, answer, AttemptState.NOT_STARTED)

    def report_unknown(self, job: Job, reason: str) -> None:
        answer = encode_no_result(job.id, UNKNOWN, "RECOVERY_REQUIRED", reason)
        self._finish(job, answer, AttemptState.UNKNOWN)

    async def drain(self) -> None:
        self._draining = True
        for subscription in self._job_subscriptions:
            await subscription.unsubscribe()
        await self._connection.flush()  # Earlier messages to this worker have arrived.
        while self._job_subscriptions:
            await self._job_subscriptions.pop().cancel()
        await self._fetch_tasks.wait_idle()

    async def close(self) -> None:
        while self._job_subscriptions or self._broadcast_subscriptions:
            await (self._job_subscriptions or self._broadcast_subscriptions).pop().cancel()
        with suppress(nats.errors.Error):
            await self._connection.client.flush(FLUSH_S)

    # --- jobs -------------------------------------------------------------------------------------

    def _on_jobs(self, batch: list[Message]) -> None:
        loop = asyncio.get_running_loop()
        for message in batch:
            if not self._subjects.is_worker_result(message.reply, self._surface):
                log.warning("call without reply subject dropped: %s", message.subject[:200])
                continue
            tool = decode_token(message.subject.rpartition(".")[2])
            job = decode_job(message, self._surface, tool)
            self._open_jobs[job.id] = _OpenJob(job, loop.time() + job.left_ms / 1_000)
            if message.body:
                self._assign(job)
            else:
                self._fetch_tasks.start(self._fetch(job, message))

    def _assign(self, job: Job) -> None:
        """Start the job, unless it is too late."""
        if refusal := self._attempts.reason_to_refuse(job):
            log.info("attempt refused: %s", refusal, extra={"call": job.call_id})
            answer = encode_no_result(job.id, NOT_STARTED, CANCELLED, refusal)
            self._finish(job, answer, AttemptState.NOT_STARTED)
        else:
            self._attempts.begin(job, _now_s())
            self._on_job(job)

    async def _fetch(self, job: Job, message: Message) -> None:
        """Fetch the arguments from the blob store."""
        try:
            body = await self._large_bodies.unpack(message)
        except CodedError as error:
            self.reject(job, f"its arguments could not be read: {error.message}")
            return
        loop = asyncio.get_running_loop()
        left_ms = int(1_000 * (self._open_jobs[job.id].until_s - loop.time()))
        self._assign(replace(job, body=body, left_ms=max(1, left_ms) if job.left_ms else 0))

    async def _send_with_retry(self, job: Job, message: Outgoing, state: AttemptState) -> None:
        """Answer once the body can be stored; raise permanent errors."""
        while True:
            try:
                self._finish(job, await self._large_bodies.pack(message), state)
                return
            except CodedError as error:
                if not CODES[error.code].retryable:
                    raise
                if self._is_late(job):
                    self.report_unknown(job, f"its answer could not be stored: {error.message}")
                    return
            await asyncio.sleep(RETRY_S)

    async def _send_error(self, job: Job, error: CodedError) -> None:
        """Send the reason for the missing answer, if possible."""
        wrong = JobAnswer(error=ToolFault(error.code, error.message))
        try:
            await self._send_with_retry(
                job, Outgoing(job.id, encode_json(wrong)), AttemptState.ENDED
            )
        except CodedError as again:
            self._open_jobs.pop(job.id, None)
            self._attempts.end(job, AttemptState.UNKNOWN, _now_s())
            log.warning("answer to a job dropped: %s", again)

    def _is_late(self, job: Job) -> bool:
        loop, taken = asyncio.get_running_loop(), self._open_jobs.get(job.id)
        return taken is None or loop.time() > taken.until_s

    def _finish(self, job: Job, answer: Outgoing, state: AttemptState) -> None:
        self._connection.send([answer])  # First, because an answer that cannot be sent is useless.
        self._open_jobs.pop(job.id, None)
        self._attempts.end(job, state, _now_s())
        self._recent_answers.add(answer)

    # --- messages to all workers ------------------------------------------------------------------

    def _on_broadcast(self, batch: list[Message]) -> None:
        for message in batch:
            what = message.subject.rpartition(".")[2]
            if what == CANCEL:
                for name in self._open_jobs.keys() & frozenset(_decode_names(message).jobs):
                    self._on_cancel(name)
            elif self._subjects.is_worker_result(message.reply, self._surface):
                if what == HEALTH:
                    self._connection.send(self._health_replies(message))
                elif what == CATALOGUE and not self._draining:
                    self._connection.send([self._catalogue._replace(subject=message.reply)])

    def _health_replies(self, message: Message) -> list[Outgoing]:
        """This worker's health, preceded by its answers to the named jobs."""
        named, now_s = _decode_names(message), _now_s()
        reports, answers = [], self._recent_answers.find(named.jobs)
        for query in named.calls or ():
            state, job_id = self._attempts.query_or_cancel(query.call, query.attempt, now_s)
            runs = state is AttemptState.RUNNING
            one = AttemptReport(
                call=query.call, attempt=query.attempt, state=state, id=job_id if runs else ""
            )
            reports.append(one)
            if state is AttemptState.ENDED:
                stored = self._recent_answers.find([job_id])
                answers += [readdressed_answer(answer, message.reply, query) for answer in stored]
        return [*answers, self._health(message, reports, self._attempts.retention_ms(now_s))]

    def _health(
        self, message: Message, reports: list[AttemptReport], remembers_ms: int
    ) -> Outgoing:
        running = tuple(
            RunningJob(id=name, tool=job.tool, call_id=job.call_id, run_id=job.run_id)
            for name, (job, _) in self._open_jobs.items()
        )
        health = WorkerHealth(
            worker=self._worker,
            draining=self._draining,
            running=running,
            calls=tuple(reports),
            remembers_ms=remembers_ms,
        )
        return Outgoing(message.reply, encode_json(health))


class _RecentAnswers:
    """The most recent answers, by reply subject."""

    def __init__(self) -> None:
        self._by_subject: OrderedDict[str, Outgoing] = OrderedDict()
        self._bytes = 0

    def add(self, answer: Outgoing) -> None:
        self._by_subject[answer.subject] = answer
        self._bytes += len(answer.body)
        while len(self._by_subject) > RECENT_ANSWERS_MAX or self._bytes > RECENT_ANSWERS_BYTES_MAX:
            _, oldest = self._by_subject.popitem(last=False)
            self._bytes -= len(oldest.body)

    def find(self, names: Iterable[str]) -> list[Outgoing]:
        return [self._by_subject[name] for name in names if name in self._by_subject]


def _decode_names(message: Message) -> JobNames:
    """The jobs in a message; none if it is malformed."""
    try:
        return _job_names(message.body or b"{}")
    except msgspec.MsgspecError:
        return JobNames()


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()


def _ignore(_: object) -> None:
    """Handler of cancellations before ``open``."""
