"""Tool workers in memory: the twins of ``rookery.bus.crews`` and ``rookery.bus.workbench``.

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

from rookery.schemas.codec import encode_json
from rookery.schemas.work import (
    GRACE_MS,
    Answered,
    Catalogue,
    Job,
    JobEnd,
    JobUnknown,
    NotBegun,
)

__all__ = ["MemoryCrews", "MemoryFloor", "MemoryWorkbench"]

AGAIN_S: Final = 0.01


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

    async def open(
        self, catalogue: Catalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        self.catalogue, self._take, self._cancel = catalogue, take, cancel
        self._floor.benches.append(self)

    async def answer(self, job: Job, body: bytes) -> None:
        self._end(job, Answered(body))

    def decline(self, job: Job, reason: str) -> None:
        self._end(job, NotBegun(reason))

    def abandon(self, job: Job, reason: str) -> None:
        self._end(job, JobUnknown(reason))

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
        loop.call_soon(self._take, job)
        return told

    def cancel_call(self, call_id: str) -> None:
        for job, _ in list(self._taken.values()):
            if job.call_id == call_id:
                self._cancel(job.id)

    def _end(self, job: Job, end: JobEnd) -> None:
        _, told = self._taken.pop(job.id, (job, None))
        if told is not None and not told.done():
            told.set_result(end)
