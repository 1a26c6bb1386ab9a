"""A tool worker: a process that executes the calls of one surface for all nodes of a realm.

It accepts as many calls as it has slots, enforces their timeouts, forwards cancellations, and
drains before it stops. The node checks arguments and answers and records the call, so the worker
stores nothing. Used on the bus loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.tools.authoring.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolCredential,
    ToolRegistry,
)
from rookery.actors.tools.functions.local_host import LocalToolHost
from rookery.actors.tools.validation.capability_checks import fault, schema_digest
from rookery.bus.ports import TaskSet, WorkerEndpoint
from rookery.schemas.calls import CallArguments, CallOutcome
from rookery.schemas.codec import encode_json
from rookery.schemas.worker_protocol import Job, JobAnswer, ServedTool, WorkerCatalogue

__all__ = ["Worker"]

log = logging.getLogger(__name__)


class _ServedFunction(NamedTuple):
    tool: RegisteredTool
    schema_digest: str


class Worker:
    """Serves the tools of a registry at a worker endpoint."""

    def __init__(
        self,
        bench: WorkerEndpoint,
        registry: ToolRegistry,
        *,
        name: str,
        concurrency: int,
        now_ms: Callable[[], int],
    ) -> None:
        """``concurrency``: how many functions run at once, including those that outlive their
        call."""
        self._endpoint, self._name, self._concurrency, self._now_ms = (
            bench,
            name,
            concurrency,
            now_ms,
        )
        self._registry, self._host = registry, LocalToolHost(registry)
        self._served = {
            tool.capability.name: _ServedFunction(tool, schema_digest(tool.capability))
            for tool in registry
        }
        self._jobs: dict[str, Job] = {}
        """Jobs without an answer."""
        self._running_count = 0
        self._tasks = TaskSet()

    async def open(self) -> None:
        """Announce the tools and accept calls."""
        tools = tuple(
            ServedTool(capability=tool.capability, awaited=tool.async_mode)
            for tool in self._registry
        )
        catalogue = WorkerCatalogue(worker=self._name, tools=tools)
        await self._endpoint.open(catalogue, self._accept, self._cancel)

    async def drain(self, timeout_s: float) -> bool:
        """Accept no more calls and finish the running ones. ``False`` on timeout: their outcomes
        are unknown, and the worker reports that to their nodes."""
        await self._endpoint.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._tasks.wait_idle()
        left = list(self._jobs.values())
        self._jobs.clear()
        for job in left:
            log.warning("call outlived its worker", extra=_log_fields(job))
            self._endpoint.report_unknown(job, f"{self._name} stopped before {job.tool} ended")
        await self._endpoint.close()
        await self._tasks.cancel()
        return not left

    def close(self, timeout_s: float) -> bool:
        """Stop functions that still run. Must not be called on the bus loop."""
        return self._host.close(timeout_s)

    # --- calls ------------------------------------------------------------------------------------

    def _accept(self, job: Job) -> None:
        served = self._served[job.tool]
        if self._running_count >= self._concurrency:
            self._endpoint.reject(job, f"{self._name} has no free slot")
        elif job.schema_digest not in ("", served.schema_digest):
            self._endpoint.reject(job, f"{self._name} serves {job.tool} with other schemas")
        else:
            self._jobs[job.id] = job
            self._running_count += 1
            self._tasks.start(self._run(job, served.tool))

    def _cancel(self, job_id: str) -> None:
        if (job := self._jobs.get(job_id)) is not None:
            self._host.cancel(_call_id(job))

    async def _run(self, job: Job, tool: RegisteredTool) -> None:
        try:
            left_ms = job.left_ms or tool.capability.limits.timeout_ms
            credential = _credential_of(job)
            outcome = await self._outcome(job, left_ms, credential)
            is_rejected = credential is not None and credential.is_rejected
            if self._jobs.pop(job.id, None) is not None:
                log.info("call answered", extra=_log_fields(job) | _outcome_fields(outcome))
                await self._endpoint.reply(job, _encode_answer(outcome, rejected=is_rejected))
            await self._host.wait_finished(_call_id(job))
        finally:
            self._running_count -= 1

    async def _outcome(
        self, job: Job, left_ms: int, credential: ToolCredential | None
    ) -> CallOutcome:
        try:
            arguments = msgspec.json.decode(job.body, type=CallArguments)
        except (msgspec.MsgspecError, RecursionError) as error:
            return CallOutcome(
                error=fault("INVALID_JSON", f"the arguments of {job.tool} do not decode: {error}")
            )
        context = ToolCallContext(
            name=job.tool,
            args=arguments.args,
            kwargs=arguments.kwargs,
            idempotency_key=job.idempotency_key,
            session_id=job.session_id,
            run_id=job.run_id,
            call_id=_call_id(job),
            deadline_ms=self._now_ms() + left_ms,
            traceparent=job.traceparent or None,
            attempt=job.attempt,
            credential=credential,
        )
        return await self._host.call(context, left_ms)


def _call_id(job: Job) -> str:
    """The id for cancellation, also of a job without a call id."""
    return job.call_id or job.id


def _credential_of(job: Job) -> ToolCredential | None:
    given = job.credential
    return None if given is None else ToolCredential(given.value, given.scheme)


def _encode_answer(outcome: CallOutcome, *, rejected: bool) -> bytes:
    if outcome.error is UNSET:
        return encode_json(JobAnswer(value=outcome.value, credential_rejected=rejected))
    return encode_json(JobAnswer(error=outcome.error, credential_rejected=rejected))


def _log_fields(job: Job) -> dict[str, object]:
    return {"tool": job.tool, "call": job.call_id, "run": job.run_id, "attempt": job.attempt}


def _outcome_fields(outcome: CallOutcome) -> dict[str, object]:
    if outcome.error is UNSET:
        return {"ok": True}
    return {"ok": False, "code": outcome.error.code}
