"""A worker's side of its surface: jobs come in, answers go out and are kept for a while.

The server gives a job to one worker of the crew and forgets it. An answer may be lost with the
connection, so the last ones are kept and sent again when somebody asks after their job. An attempt
that comes late is refused, as ``call_memory`` says. How many jobs to take, and how to do them, is
the worker's. The wire is ``jobs``'.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import nats.errors
from msgspec.structs import replace

from rookery.bus.commands.headers import answerable
from rookery.bus.nats.connection import Connection, Message, Outgoing, Subscription
from rookery.bus.ports import Blobs
from rookery.bus.subjects import Subjects, decode_token
from rookery.bus.workers.attempt_registry import CallMemory
from rookery.bus.workers.protocol import (
    CALLED_OFF,
    CANCEL,
    CATALOGUE,
    HEALTH,
    NOT_BEGUN,
    QUEUE,
    UNKNOWN,
    Named,
    Parcels,
    answer_again,
    job_of,
    no_answer,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError
from rookery.schemas.worker_protocol import (
    CallSaid,
    CallState,
    Catalogue,
    Health,
    Job,
    JobAnswer,
    RunningJob,
)

__all__ = ["NatsWorkbench"]

log = logging.getLogger(__name__)

ANSWERS_KEPT_MAX: Final = 1_000
ANSWERS_KEPT_BYTES_MAX: Final = 8 << 20
AGAIN_S: Final = 0.2
FLUSH_S: Final = 2

_named = msgspec.json.Decoder(Named).decode


class _Taken(NamedTuple):
    job: Job
    until_s: float
    """When nobody waits any more."""


class NatsWorkbench:
    """Port ``Workbench``. To be used on the event loop of its connection."""

    def __init__(
        self, connection: Connection, subjects: Subjects, blobs: Blobs, surface: str
    ) -> None:
        self._connection, self._subjects, self._surface = connection, subjects, surface
        self._parcels, self._answers = Parcels(connection, blobs), _Answers()
        self._memory: CallMemory
        self._catalogue = Outgoing("", b"")
        self._worker = ""
        self._taken: dict[str, _Taken] = {}
        self._take: Callable[[Job], None] = _nobody
        self._cancel: Callable[[str], None] = _nobody
        self._calls: list[Subscription] = []
        self._crew: list[Subscription] = []
        self._fetching: set[asyncio.Task[None]] = set()
        self._draining = False

    async def open(
        self, catalogue: Catalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        self._worker, self._take, self._cancel = catalogue.worker, take, cancel
        self._memory = CallMemory(_now_s())
        self._catalogue = await self._parcels.packed(Outgoing("", encode_json(catalogue)))
        subscribe, subjects = self._connection.subscribe, self._subjects
        for tool in catalogue.tools:  # Those before it, so that who is seen can be called.
            subject = subjects.job(self._surface, tool.capability.name)
            self._calls.append(await subscribe(subject, self._called, queue=QUEUE))
        self._crew.append(await subscribe(subjects.crew(self._surface, "*"), self._spoken_to))

    async def answer(self, job: Job, body: bytes) -> None:
        try:
            await self._insist(job, Outgoing(job.id, body), CallState.ENDED)
        except CodedError as error:
            await self._excuse(job, error)

    def decline(self, job: Job, reason: str) -> None:
        answer = no_answer(job.id, NOT_BEGUN, "WORKER_UNAVAILABLE", reason)
        self._end(job, answer, CallState.NOT_BEGUN)

    def abandon(self, job: Job, reason: str) -> None:
        answer = no_answer(job.id, UNKNOWN, "RECOVERY_REQUIRED", reason)
        self._end(job, answer, CallState.UNKNOWN)

    async def drain(self) -> None:
        self._draining = True
        for subscription in self._calls:
            await subscription.leave()
        await self._connection.flushed()  # What was sent to us before that has come.
        while self._calls:
            await self._calls.pop().cancel()
        while self._fetching:
            await asyncio.wait(set(self._fetching))

    async def close(self) -> None:
        while self._calls or self._crew:
            await (self._calls or self._crew).pop().cancel()
        with suppress(nats.errors.Error):
            await self._connection.client.flush(FLUSH_S)

    # --- jobs -------------------------------------------------------------------------------------

    def _called(self, batch: list[Message]) -> None:
        loop = asyncio.get_running_loop()
        for message in batch:
            if not answerable(message.reply):
                log.warning("a call that wants no answer was dropped: %s", message.subject[:200])
                continue
            tool = decode_token(message.subject.rpartition(".")[2])
            job = job_of(message, self._surface, tool)
            self._taken[job.id] = _Taken(job, loop.time() + job.left_ms / 1_000)
            if message.body:
                self._give(job)
            else:
                self._begin(self._fetch(job, message))

    def _give(self, job: Job) -> None:
        """To be done, unless it is too late for that."""
        if refusal := self._memory.refusal(job):
            log.info("an attempt is not begun: %s", refusal, extra={"call": job.call_id})
            answer = no_answer(job.id, NOT_BEGUN, CALLED_OFF, refusal)
            self._end(job, answer, CallState.NOT_BEGUN)
        else:
            self._memory.begin(job, _now_s())
            self._take(job)

    async def _fetch(self, job: Job, message: Message) -> None:
        """Its arguments are elsewhere."""
        try:
            body = await self._parcels.unpacked(message)
        except CodedError as error:
            self.decline(job, f"its arguments could not be had: {error.message}")
            return
        loop = asyncio.get_running_loop()
        left_ms = int(1_000 * (self._taken[job.id].until_s - loop.time()))
        self._give(replace(job, body=body, left_ms=max(1, left_ms) if job.left_ms else 0))

    async def _insist(self, job: Job, message: Outgoing, state: CallState) -> None:
        """Answer as soon as it can be stored; raises what will not work later either."""
        while True:
            try:
                self._end(job, await self._parcels.packed(message), state)
                return
            except CodedError as error:
                if not CODES[error.code].retryable:
                    raise
                if self._is_late(job):
                    self.abandon(job, f"its answer could not be stored: {error.message}")
                    return
            await asyncio.sleep(AGAIN_S)

    async def _excuse(self, job: Job, error: CodedError) -> None:
        """Say why there is no answer, if even that can be sent."""
        wrong = JobAnswer(error=ToolFault(error.code, error.message))
        try:
            await self._insist(job, Outgoing(job.id, encode_json(wrong)), CallState.ENDED)
        except CodedError as again:
            self._taken.pop(job.id, None)
            self._memory.end(job, CallState.UNKNOWN, _now_s())
            log.warning("the answer to a job is dropped: %s", again)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    def _is_late(self, job: Job) -> bool:
        loop, taken = asyncio.get_running_loop(), self._taken.get(job.id)
        return taken is None or loop.time() > taken.until_s

    def _end(self, job: Job, answer: Outgoing, state: CallState) -> None:
        self._connection.send([answer])  # First: what cannot be sent is not kept to be sent again.
        self._taken.pop(job.id, None)
        self._memory.end(job, state, _now_s())
        self._answers.keep(answer)

    # --- what the whole crew is asked -------------------------------------------------------------

    def _spoken_to(self, batch: list[Message]) -> None:
        for message in batch:
            what = message.subject.rpartition(".")[2]
            if what == CANCEL:
                for name in self._taken.keys() & frozenset(_read(message).jobs):
                    self._cancel(name)
            elif answerable(message.reply):
                if what == HEALTH:
                    self._connection.send(self._said(message))
                elif what == CATALOGUE and not self._draining:
                    self._connection.send([self._catalogue._replace(subject=message.reply)])

    def _said(self, message: Message) -> list[Outgoing]:
        """How this worker is, after what it answered to those it is asked after."""
        named, now_s = _read(message), _now_s()
        said, answers = [], self._answers.of(named.jobs)
        for asked in named.calls or ():
            state, job_id = self._memory.ask(asked.call, asked.attempt, now_s)
            runs = state is CallState.RUNNING
            one = CallSaid(
                call=asked.call, attempt=asked.attempt, state=state, id=job_id if runs else ""
            )
            said.append(one)
            if state is CallState.ENDED:
                kept = self._answers.of([job_id])
                answers += [answer_again(answer, message.reply, asked) for answer in kept]
        return [*answers, self._health(message, said, self._memory.remembers_ms(now_s))]

    def _health(self, message: Message, said: list[CallSaid], remembers_ms: int) -> Outgoing:
        running = tuple(
            RunningJob(id=name, tool=job.tool, call_id=job.call_id, run_id=job.run_id)
            for name, (job, _) in self._taken.items()
        )
        health = Health(
            worker=self._worker,
            draining=self._draining,
            running=running,
            calls=tuple(said),
            remembers_ms=remembers_ms,
        )
        return Outgoing(message.reply, encode_json(health))


class _Answers:
    """The last ones, by reply subject."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Outgoing] = OrderedDict()
        self._bytes = 0

    def keep(self, answer: Outgoing) -> None:
        self._kept[answer.subject] = answer
        self._bytes += len(answer.body)
        while len(self._kept) > ANSWERS_KEPT_MAX or self._bytes > ANSWERS_KEPT_BYTES_MAX:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest.body)

    def of(self, names: Iterable[str]) -> list[Outgoing]:
        return [self._kept[name] for name in names if name in self._kept]


def _read(message: Message) -> Named:
    """What a message is about; nothing if it makes no sense."""
    try:
        return _named(message.body or b"{}")
    except msgspec.MsgspecError:
        return Named()


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()


def _nobody(_: object) -> None:
    """Before it is open."""
