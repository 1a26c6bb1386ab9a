"""Tool workers in memory: the twins of ``rookery.bus.workers.client`` and
``rookery.bus.workers.server``.

``MemoryFloor`` is the server's part: who stands at which bench. A worker that leaves without a word
leaves its jobs unknown at once, for nothing can be lost on the way here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final

from msgspec.structs import replace

from rookery.bus.workers.attempt_registry import CallMemory
from rookery.schemas.codec import encode_json
from rookery.schemas.worker_protocol import (
    GRACE_MS,
    Answered,
    CallState,
    Catalogue,
    CrewSaid,
    Job,
    JobEnd,
    JobUnknown,
    NotBegun,
    WorkerSaid,
)

__all__ = ["MemoryCrews", "MemoryFloor", "MemoryWorkbench"]

AGAIN_S: Final = 0.01
ANSWERS_MAX: Final = 1_000


class MemoryFloor:
    """The open benches of a realm."""

    def __init__(self) -> None:
        self.benches: list[MemoryWorkbench] = []
        self.numbers = count(1)

    def crew(self, surface: str) -> list[MemoryWorkbench]:
        return [b for b in self.benches if b.surface == surface and b.catalogue is not None]


class MemoryCrews:
    """Port ``Crews``."""

    def __init__(self, floor: MemoryFloor) -> None:
        self._floor = floor

    async def call(self, job: Job) -> JobEnd:
        free = [b for b in self._floor.crew(job.surface) if b.takes(job.tool)]
        if not free:
            return NotBegun(f"no worker of {job.surface} serves {job.tool}", nobody=True)
        number = next(self._floor.numbers)
        told = free[number % len(free)].give(replace(job, id=str(number)))
        with suppress(TimeoutError):
            async with asyncio.timeout((job.left_ms + GRACE_MS) / 1_000):
                return await told
        return JobUnknown(f"no answer came within {job.left_ms} ms")

    async def ask_after(self, surface: str, call_id: str, attempt: int) -> CrewSaid:
        said = [b.asked_after(call_id, attempt) for b in self._floor.crew(surface)]
        answers = [answer for _, answer in said if answer is not None]
        return CrewSaid(
            workers=tuple(worker for worker, _ in said), answer=answers[0] if answers else None
        )

    def cancel(self, call_id: str) -> None:
        for bench in self._floor.benches:
            bench.cancel_call(call_id)

    async def catalogues(self, surface: str, patience_s: float) -> list[bytes]:
        for _ in range(max(1, round(patience_s / AGAIN_S))):
            crew = self._floor.crew(surface)
            if told := [encode_json(bench.catalogue) for bench in crew if not bench.draining]:
                return told
            await asyncio.sleep(AGAIN_S)
        return []


class MemoryWorkbench:
    """Port ``Workbench``."""

    def __init__(self, floor: MemoryFloor, surface: str) -> None:
        self._floor, self.surface = floor, surface
        self.catalogue: Catalogue | None = None
        self.draining = False
        self._take: Callable[[Job], None]
        self._cancel: Callable[[str], None]
        self._taken: dict[str, tuple[Job, asyncio.Future[JobEnd]]] = {}
        self._answers: dict[str, bytes] = {}
        self._memory: CallMemory

    async def open(
        self, catalogue: Catalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        self.catalogue, self._take, self._cancel = catalogue, take, cancel
        self._memory = CallMemory(_now_s())
        self._floor.benches.append(self)

    async def answer(self, job: Job, body: bytes) -> None:
        self._answers[job.id] = body
        while len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._end(job, Answered(body), CallState.ENDED)

    def decline(self, job: Job, reason: str) -> None:
        self._end(job, NotBegun(reason), CallState.NOT_BEGUN)

    def abandon(self, job: Job, reason: str) -> None:
        self._end(job, JobUnknown(reason), CallState.UNKNOWN)

    async def drain(self) -> None:
        self.draining = True

    async def close(self) -> None:
        if self in self._floor.benches:
            self._floor.benches.remove(self)
        for job, _ in list(self._taken.values()):
            self.abandon(job, "its worker was lost with it")

    # --- the floor's side -------------------------------------------------------------------------

    def takes(self, tool: str) -> bool:
        served = () if self.catalogue is None else self.catalogue.tools
        return not self.draining and tool in (one.capability.name for one in served)

    def give(self, job: Job) -> asyncio.Future[JobEnd]:
        """What comes of it."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[JobEnd] = loop.create_future()
        self._taken[job.id] = job, told
        if refusal := self._memory.refusal(job):
            self._end(job, NotBegun(refusal, called_off=True), CallState.NOT_BEGUN)
        else:
            self._memory.begin(job, loop.time())
            loop.call_soon(self._take, job)
        return told

    def asked_after(self, call_id: str, attempt: int) -> tuple[WorkerSaid, bytes | None]:
        assert self.catalogue is not None
        now_s = _now_s()
        state, job_id = self._memory.ask(call_id, attempt, now_s)
        said = WorkerSaid(
            worker=self.catalogue.worker,
            state=state,
            remembers_ms=self._memory.remembers_ms(now_s),
        )
        return said, self._answers.get(job_id) if state is CallState.ENDED else None

    def cancel_call(self, call_id: str) -> None:
        for job, _ in list(self._taken.values()):
            if job.call_id == call_id:
                self._cancel(job.id)

    def _end(self, job: Job, end: JobEnd, state: CallState) -> None:
        self._memory.end(job, state, _now_s())
        _, told = self._taken.pop(job.id, (job, None))
        if told is not None and not told.done():
            told.set_result(end)


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()
