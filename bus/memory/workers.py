"""Tool workers in memory: the twins of ``rookery.bus.workers.client`` and ``.server``.

``MemoryWorkerRegistry`` is the server's part: the registered workers. A worker that closes leaves
its jobs with an unknown outcome at once, because messages cannot be lost here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Final

from msgspec.structs import replace

from rookery.bus.ports.commands import HookHandler
from rookery.bus.workers.server import AttemptRegistry
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.worker_protocol import (
    GRACE_MS,
    AttemptState,
    Job,
    JobAnswered,
    JobNotStarted,
    JobOutcome,
    JobOutcomeUnknown,
    WorkerCatalogue,
    WorkerReport,
    WorkerReports,
)

__all__ = ["MemoryToolWorkers", "MemoryWorkerEndpoint", "MemoryWorkerRegistry"]

RETRY_S: Final = 0.01
ANSWERS_MAX: Final = 1_000


class MemoryWorkerRegistry:
    """The open worker endpoints of a realm."""

    def __init__(self) -> None:
        self.endpoints: list[MemoryWorkerEndpoint] = []
        self.numbers = count(1)

    def of_surface(self, surface: str) -> list[MemoryWorkerEndpoint]:
        return [b for b in self.endpoints if b.surface == surface and b.catalogue is not None]


class MemoryHookServices:
    """Port ``HookServices``."""

    def __init__(self, handlers: Mapping[str, HookHandler]) -> None:
        self._handlers = handlers
        self.late: Mapping[str, int] = {}

    async def ask(self, hook: str, invocation: str, body: bytes, *, patience_s: float) -> bytes:
        del invocation
        if hook not in self._handlers:
            await asyncio.sleep(patience_s)
        if (handle := self._handlers.get(hook)) is None:
            raise Failed("NO_ANSWER", f"no process serves hook {hook}")
        return await handle(body)


class MemoryToolWorkers:
    """Port ``ToolWorkers``."""

    def __init__(self, registry: MemoryWorkerRegistry) -> None:
        self._workers = registry

    async def call(self, job: Job) -> JobOutcome:
        free = [b for b in self._workers.of_surface(job.surface) if b.serves(job.tool)]
        if not free:
            return JobNotStarted(f"no worker of {job.surface} serves {job.tool}", no_worker=True)
        number = next(self._workers.numbers)
        outcome = free[number % len(free)].assign(replace(job, id=str(number)))
        with suppress(TimeoutError):
            async with asyncio.timeout((job.left_ms + GRACE_MS) / 1_000):
                return await outcome
        return JobOutcomeUnknown(f"no reply within {job.left_ms} ms")

    async def query_attempt(self, surface: str, call_id: str, attempt: int) -> WorkerReports:
        reports = [b.report_attempt(call_id, attempt) for b in self._workers.of_surface(surface)]
        answers = [answer for _, answer in reports if answer is not None]
        return WorkerReports(
            workers=tuple(worker for worker, _ in reports), answer=answers[0] if answers else None
        )

    def cancel(self, call_id: str) -> None:
        for endpoint in self._workers.endpoints:
            endpoint.cancel_call(call_id)

    async def delete_answer(self, blob: str) -> None:
        """There is none: answers of any size are in messages."""

    async def catalogues(self, surface: str, patience_s: float) -> list[bytes]:
        for _ in range(max(1, round(patience_s / RETRY_S))):
            endpoints = self._workers.of_surface(surface)
            if catalogues := [
                encode_json(endpoint.catalogue) for endpoint in endpoints if not endpoint.draining
            ]:
                return catalogues
            await asyncio.sleep(RETRY_S)
        return []


class MemoryWorkerEndpoint:
    """Port ``WorkerEndpoint``."""

    def __init__(self, registry: MemoryWorkerRegistry, surface: str) -> None:
        self._workers, self.surface = registry, surface
        self.catalogue: WorkerCatalogue | None = None
        self.draining = False
        self._on_job: Callable[[Job], None]
        self._on_cancel: Callable[[str], None]
        self._open_jobs: dict[str, tuple[Job, asyncio.Future[JobOutcome]]] = {}
        self._answers: dict[str, bytes] = {}
        self._attempts: AttemptRegistry

    async def open(
        self, catalogue: WorkerCatalogue, take: Callable[[Job], None], cancel: Callable[[str], None]
    ) -> None:
        self.catalogue, self._on_job, self._on_cancel = catalogue, take, cancel
        self._attempts = AttemptRegistry(_now_s())
        self._workers.endpoints.append(self)

    async def reply(self, job: Job, body: bytes) -> None:
        self._answers[job.id] = body
        while len(self._answers) > ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        self._finish(job, JobAnswered(body), AttemptState.ENDED)

    def reject(self, job: Job, reason: str) -> None:
        self._finish(job, JobNotStarted(reason), AttemptState.NOT_STARTED)

    def report_unknown(self, job: Job, reason: str) -> None:
        self._finish(job, JobOutcomeUnknown(reason), AttemptState.UNKNOWN)

    async def drain(self) -> None:
        self.draining = True

    async def close(self) -> None:
        if self in self._workers.endpoints:
            self._workers.endpoints.remove(self)
        for job, _ in list(self._open_jobs.values()):
            self.report_unknown(job, "the worker stopped during the job")

    # --- called by the registry -------------------------------------------------------------------

    def serves(self, tool: str) -> bool:
        served = () if self.catalogue is None else self.catalogue.tools
        return not self.draining and tool in (one.capability.name for one in served)

    def assign(self, job: Job) -> asyncio.Future[JobOutcome]:
        """Start the job and return its future outcome."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[JobOutcome] = loop.create_future()
        self._open_jobs[job.id] = job, outcome
        if refusal := self._attempts.reason_to_refuse(job):
            self._finish(job, JobNotStarted(refusal, cancelled=True), AttemptState.NOT_STARTED)
        else:
            self._attempts.begin(job, loop.time())
            loop.call_soon(self._on_job, job)
        return outcome

    def report_attempt(self, call_id: str, attempt: int) -> tuple[WorkerReport, bytes | None]:
        assert self.catalogue is not None
        now_s = _now_s()
        state, job_id = self._attempts.query_or_cancel(call_id, attempt, now_s)
        report = WorkerReport(
            worker=self.catalogue.worker,
            state=state,
            remembers_ms=self._attempts.retention_ms(now_s),
        )
        return report, self._answers.get(job_id) if state is AttemptState.ENDED else None

    def cancel_call(self, call_id: str) -> None:
        for job, _ in list(self._open_jobs.values()):
            if job.call_id == call_id:
                self._on_cancel(job.id)

    def _finish(self, job: Job, end: JobOutcome, state: AttemptState) -> None:
        self._attempts.end(job, state, _now_s())
        _, outcome = self._open_jobs.pop(job.id, (job, None))
        if outcome is not None and not outcome.done():
            outcome.set_result(end)


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()
