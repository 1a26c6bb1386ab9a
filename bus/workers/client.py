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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Final

import msgspec

from rookery.bus.journal.stored_message import status_of
from rookery.bus.nats.connection import Connection, Message, Outgoing, Subscription
from rookery.bus.ports import Blobs
from rookery.bus.subjects import Subjects
from rookery.bus.workers.protocol import (
    CALLED_OFF,
    CANCEL,
    CATALOGUE,
    HEALTH,
    NOT_BEGUN,
    UNKNOWN,
    AskedAttempt,
    Named,
    Parcels,
    is_answer_to,
    job_headers,
    outcome_of,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, Failed
from rookery.schemas.worker_protocol import (
    GRACE_MS,
    Answered,
    CrewSaid,
    Health,
    Job,
    JobEnd,
    JobUnknown,
    NotBegun,
    WorkerSaid,
)

__all__ = ["NatsCrews"]

PULSE_S: Final = 2.0
MISSED_MAX: Final = 5
"""A worker may be too busy to speak; one that says nothing of a job so often has lost it."""
NAMES_MAX: Final = 1_000
"""Of jobs, in one message."""
ROLL_CALL_S: Final = 1.0
LATECOMERS_S: Final = 0.3
AGAIN_S: Final = 0.2
_NO_RESPONDERS: Final = 503

_health = msgspec.json.Decoder(Health).decode


class _Waiting:
    """A job until it has come to something."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.told: asyncio.Future[Message | JobUnknown] = asyncio.get_running_loop().create_future()
        self.worker = ""
        """Who said that it runs it."""
        self.missed = 0
        """How often nobody has said so since."""
        self.cancelled = False

    def tell(self, end: Message | JobUnknown) -> None:
        if not self.told.done():
            self.told.set_result(end)


class NatsCrews:
    """Port ``Crews``. To be used on the event loop of its connection."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        blobs: Blobs,
        *,
        pulse_s: float = PULSE_S,
    ) -> None:
        self._connection, self._subjects, self._pulse_s = connection, subjects, pulse_s
        self._parcels = Parcels(connection, blobs)
        self._inbox = connection.client.new_inbox()
        self._numbers = count(1)
        self._listeners: dict[str, Callable[[Message], None]] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._elsewhere: dict[str, tuple[str, str]] = {}
        """Surface and job of calls that another process sent and this one waits for."""
        self._subscription: Subscription | None = None
        self._pulse: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """From now on answers find their way."""
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._arrived)

    async def close(self) -> None:
        """Nobody is told anything any more."""
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        if self._subscription is not None:
            await self._subscription.cancel()

    async def call(self, job: Job) -> JobEnd:
        waiting = _Waiting(job)
        with self._listening(waiting.tell) as reply:
            subject = self._subjects.job(job.surface, job.tool)
            message = Outgoing(subject, job.body, reply, job_headers(job))
            self._waiting[reply] = waiting
            try:
                message = await self._parcels.packed(message)
                if waiting.cancelled:
                    return NotBegun("nobody wants it any more")
                if not self._connection.send([message]):
                    return NotBegun("there is no connection to the server")
                self._keep_asking()
                async with asyncio.timeout((job.left_ms + GRACE_MS) / 1_000):
                    return await self._end_of(waiting)
            except TimeoutError:
                return JobUnknown(f"no answer came within {job.left_ms} ms")
            finally:
                del self._waiting[reply]

    async def ask_after(self, surface: str, call_id: str, attempt: int) -> CrewSaid:
        if not self._connection.connected:  # Silence would say nothing of workers.
            raise Failed("SERVER_UNREACHABLE", "the workers cannot be asked after a call")
        asked = AskedAttempt(call_id, attempt)
        self._elsewhere.pop(call_id, None)
        answer, workers = None, []
        for message in await self._roll_call(surface, HEALTH, encode_json(Named(calls=(asked,)))):
            if is_answer_to(message, asked):
                answer = message
                continue
            with suppress(msgspec.MsgspecError):
                workers.append(self._said(surface, _health(message.body), asked))
        body = None if answer is None else await self._parcels.unpacked(answer)
        return CrewSaid(workers=tuple(workers), answer=body)

    def _said(self, surface: str, health: Health, asked: AskedAttempt) -> WorkerSaid:
        """What one worker said; where the job runs is kept, so that it can be cancelled."""
        state = None
        for said in health.calls:
            if (said.call, said.attempt) == (asked.call, asked.attempt):
                state = said.state
                if said.id:
                    self._elsewhere[asked.call] = surface, said.id
        return WorkerSaid(worker=health.worker, state=state, remembers_ms=health.remembers_ms)

    def cancel(self, call_id: str) -> None:
        if call_id in self._elsewhere:
            surface, name = self._elsewhere[call_id]
            self._speak(surface, CANCEL, [name])
        for reply, waiting in self._waiting.items():
            if waiting.job.call_id == call_id:
                waiting.cancelled = True
                self._speak(waiting.job.surface, CANCEL, [reply])

    async def catalogues(self, surface: str, patience_s: float) -> list[bytes]:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + patience_s
        while True:
            if found := await self._roll_call(surface):
                return [await self._parcels.unpacked(message) for message in found]
            if loop.time() + AGAIN_S > end_s:
                return []
            await asyncio.sleep(AGAIN_S)

    # --- answers ----------------------------------------------------------------------------------

    def _arrived(self, batch: list[Message]) -> None:
        for message in batch:
            listener = self._listeners.get(message.subject)
            if listener is not None:
                listener(message)

    @contextmanager
    def _listening(self, listener: Callable[[Message], None]) -> Iterator[str]:
        """A subject whose messages go to ``listener``."""
        reply = f"{self._inbox}.{next(self._numbers)}"
        self._listeners[reply] = listener
        try:
            yield reply
        finally:
            del self._listeners[reply]

    async def _end_of(self, waiting: _Waiting) -> JobEnd:
        told = await waiting.told
        if isinstance(told, JobUnknown):
            return told
        job = waiting.job
        if status_of(told) == _NO_RESPONDERS:
            return NotBegun(f"no worker of {job.surface} serves {job.tool}", nobody=True)
        outcome, why = outcome_of(told)
        if outcome == NOT_BEGUN:
            return NotBegun(why.message, called_off=why.code == CALLED_OFF)
        if outcome == UNKNOWN:
            return JobUnknown(why.message)
        while True:
            try:
                return Answered(await self._parcels.unpacked(told))
            except Failed as failure:
                if not CODES[failure.code].retryable:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _roll_call(
        self, surface: str, what: str = CATALOGUE, body: bytes = b""
    ) -> list[Message]:
        """Who of a surface is there: everybody who speaks shortly after the first."""
        found: list[Message] = []
        spoken = asyncio.Event()

        def listen(message: Message) -> None:
            if status_of(message) != _NO_RESPONDERS:
                found.append(message)
            spoken.set()

        with self._listening(listen) as reply:
            if self._connection.send([Outgoing(self._subjects.crew(surface, what), body, reply)]):
                with suppress(TimeoutError):
                    await asyncio.wait_for(spoken.wait(), ROLL_CALL_S)
            if found:
                await asyncio.sleep(LATECOMERS_S)
        return found

    # --- asking after jobs ------------------------------------------------------------------------

    def _keep_asking(self) -> None:
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.get_running_loop().create_task(self._ask_after_jobs())

    async def _ask_after_jobs(self) -> None:
        with self._listening(self._hear) as reply:
            while self._waiting:
                await asyncio.sleep(self._pulse_s)
                if self._connection.connected:  # Else nobody can say anything.
                    self._ask_once(reply)

    def _ask_once(self, reply: str) -> None:
        asked: dict[str, list[str]] = defaultdict(list)
        unwanted: dict[str, list[str]] = defaultdict(list)
        for name, waiting in self._waiting.items():
            if waiting.worker:
                waiting.missed += 1
            if waiting.missed > MISSED_MAX:
                waiting.tell(JobUnknown(f"the worker {waiting.worker} was lost with it"))
            asked[waiting.job.surface].append(name)
            if waiting.cancelled:
                unwanted[waiting.job.surface].append(name)
        for surface, names in unwanted.items():
            self._speak(surface, CANCEL, names)
        for surface, names in asked.items():
            self._speak(surface, HEALTH, names, reply)

    def _hear(self, message: Message) -> None:
        """A worker says what it runs."""
        try:
            health = _health(message.body)
        except msgspec.MsgspecError:
            return
        for running in health.running:
            if (waiting := self._waiting.get(running.id)) is not None:
                waiting.worker, waiting.missed = health.worker, 0

    def _speak(self, surface: str, what: str, names: list[str], reply: str = "") -> None:
        subject = self._subjects.crew(surface, what)
        for at in range(0, len(names), NAMES_MAX):
            body = encode_json(Named(jobs=tuple(names[at : at + NAMES_MAX])))
            self._connection.send([Outgoing(subject, body, reply)])
