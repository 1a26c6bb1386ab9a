"""The remote tool host: calls the tools of a surface that workers serve.

It discovers the tools once, from the first workers; the server chooses the worker of a call. A call
that no worker has begun is offered again within its timeout. Answers are checked against the
schemas. If the outcome is unknown, the host says so, because the tool may have acted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.authoring.registry import ToolCallContext, ToolCredential
from rookery.actors.tools.catalogue.catalogue import CatalogueTool
from rookery.actors.tools.hosts.host import NotCalled, OutcomeUnknown, PastAttempt, always_allowed
from rookery.actors.tools.validation.capability_checks import (
    CapabilityChecks,
    fault,
    fault_of,
    schema_digest,
)
from rookery.bus.ports import Backoff, ToolWorkers
from rookery.schemas.calls import CallArguments, CallOutcome, ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.surfaces import SurfaceKind, SurfaceTool, catalogue_name, check_surface
from rookery.schemas.worker_protocol import (
    AttemptState,
    Job,
    JobAnswer,
    JobCredential,
    JobNotStarted,
    JobOutcome,
    JobOutcomeUnknown,
    ServedTool,
    WorkerCatalogue,
    WorkerReport,
    WorkerReports,
)

__all__ = ["DISCOVERY_TIMEOUT_S", "RemoteToolHost"]

DISCOVERY_TIMEOUT_S: Final = 10.0
"""How long one look for workers takes at most."""
NO_WORKER_TIMEOUT_S: Final = 1.0
"""How long a call waits while a surface has no worker, for example during a restart."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.5
QUERY_PAUSE_S_MIN, QUERY_PAUSE_S_MAX = 0.1, 2.0
UNANSWERED_MAX: Final = 5
"""A worker that misses more queries than this counts as lost; a busy one may miss some."""
NAMES_MAX: Final = 5
"""Workers named in one message."""
INLINE_ANSWER_BYTES_MAX: Final = 64 << 10
"""Larger answers are checked on a thread."""


class _RemoteCall:
    """A call until its host has answered."""

    def __init__(self, may_act: Callable[[], bool]) -> None:
        self.cancel_requested, self.may_act = asyncio.Event(), may_act


class RemoteToolHost:
    """Implements the port ``ToolHost``."""

    def __init__(self, crews: ToolWorkers, surface: str, served: dict[str, ServedTool]) -> None:
        """``served``: tools by the workers' names."""
        self._workers, self.surface = crews, surface
        self._names: dict[str, str] = {}
        self.catalogue_tools: list[CatalogueTool] = []
        for name, one in served.items():
            seen = catalogue_name(surface, name)
            capability = replace(one.capability, name=seen)
            offered = CatalogueTool.of(
                surface, capability, awaited=one.awaited, kind=SurfaceKind.WORKER
            )
            self.catalogue_tools.append(offered)
            self._names[seen] = name
        self._tools = {tool.capability.name: tool for tool in self.catalogue_tools}
        self._calls: dict[str, _RemoteCall] = {}

    @classmethod
    async def discover(
        cls, crews: ToolWorkers, surface: str, *, patience_s: float = 0.0
    ) -> RemoteToolHost | None:
        """A host for all tools of the surface's workers, ``None`` without a worker; raises a coded
        error."""
        check_surface(surface)
        found = await crews.catalogues(surface, patience_s)
        if not found:
            return None
        served: dict[str, ServedTool] = {}
        for catalogue in sorted(
            map(_decode_catalogue, found), key=lambda catalogue: catalogue.worker
        ):
            for tool in catalogue.tools:
                _add_served(served, tool, catalogue.worker)
        return cls(crews, surface, served)

    async def is_served(self) -> bool:
        """Whether a worker of the surface answers now."""
        return bool(await self._workers.catalogues(self.surface, 0.0))

    @property
    def surface_tools(self) -> tuple[SurfaceTool, ...]:
        """The tools as a catalogue of surfaces has them."""
        return tuple(
            SurfaceTool(
                capability=tool.capability,
                awaited=tool.available.awaited,
                served_as=self._names[tool.capability.name],
            )
            for tool in self.catalogue_tools
        )

    # --- port ToolHost ----------------------------------------------------------------------------

    async def wait_ready(self, name: str) -> None:
        expected = self._names[name], self._tools[name].available.schema_digest
        while True:
            for encoded in await self._workers.catalogues(self.surface, DISCOVERY_TIMEOUT_S):
                with suppress(Refused):
                    tools = [tool.capability for tool in _decode_catalogue(encoded).tools]
                    if expected in [(tool.name, schema_digest(tool)) for tool in tools]:
                        return
            await asyncio.sleep(PAUSE_S_MAX)

    def call_quickly(self, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome | None:
        """None: a worker is never quick."""
        del ctx, may_act
        return None

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = always_allowed
    ) -> CallOutcome:
        tool = self._tools[ctx.name]
        calling = self._calls[ctx.call_id] = _RemoteCall(may_act)
        try:
            end = await self._submit_until_accepted(self._job(ctx, tool), calling, timeout_ms)
        except CodedError as error:
            return CallOutcome(error=fault_of(error))
        finally:
            del self._calls[ctx.call_id]
        unwanted = calling.cancel_requested.is_set()
        match end:
            case JobNotStarted(reason=reason, cancelled=off) if ctx.attempt == 1:
                code = "CANCELLED" if unwanted or off else "WORKER_UNAVAILABLE"
                return CallOutcome(error=fault(code, f"{ctx.name} was not called: {reason}"))
            case JobNotStarted(reason=reason) | JobOutcomeUnknown(reason=reason):
                if unwanted and tool.capability.idempotent:
                    return CallOutcome(error=fault("CANCELLED", f"{ctx.name}: {reason}"))
                raise OutcomeUnknown(reason)
        credentials = () if ctx.credential is None else (ctx.credential,)
        return await self._answer_outcome(tool.checks, end.body, end.blob, credentials)

    def cancel(self, call_id: str) -> None:
        if (calling := self._calls.get(call_id)) is not None:
            calling.cancel_requested.set()
            self._workers.cancel(call_id)

    async def wait_finished(self, call_id: str) -> None:
        """Returns at once: a function that outlives its call occupies its worker, and nothing
        here."""

    async def follow_task(self, past: PastAttempt, task: str) -> CallOutcome:
        del past, task
        raise OutcomeUnknown(f"{self.surface} has no tasks")

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        tool = self._tools.get(past.name)
        if tool is None or tool.available.schema_digest != past.schema_digest:
            raise OutcomeUnknown("the workers do not serve the tool with the schema of the call")
        calling = self._calls[past.call_id] = _RemoteCall(always_allowed)
        try:
            body, blob = await self._poll_answer(past, calling)
            return await self._answer_outcome(tool.checks, body, blob, past.credentials)
        finally:
            del self._calls[past.call_id]

    async def _answer_outcome(
        self,
        checks: CapabilityChecks,
        body: bytes,
        blob: str,
        credentials: Sequence[ToolCredential],
    ) -> CallOutcome:
        """The outcome in an answer. One that a worker has stored with a credential is deleted and
        refused, so that its operator mends the worker."""
        is_exposed = bool(blob) and await asyncio.to_thread(_has_credential, body, credentials)
        if not is_exposed:
            return await _checked_outcome(checks, body, credentials)
        await self._workers.delete_answer(blob)
        return CallOutcome(
            error=fault(
                "CREDENTIAL_EXPOSED",
                f"a worker of {self.surface} stored the credential of the call with its answer, "
                "which was deleted: a worker has to remove it from what it stores",
            )
        )

    async def _poll_answer(self, past: PastAttempt, calling: _RemoteCall) -> tuple[bytes, str]:
        """Query until a worker has the answer, and its blob; while one runs the call, until its
        time is over or the worker is lost."""
        loop = asyncio.get_running_loop()
        end_s, absence_end_s = loop.time() + past.left_ms / 1_000, loop.time() + NO_WORKER_TIMEOUT_S
        pause, runs_at, silent = Backoff(QUERY_PAUSE_S_MIN, QUERY_PAUSE_S_MAX), "", 0
        while True:
            report = await self._workers.query_attempt(self.surface, past.call_id, past.attempt)
            if report.answer is not None:
                return report.answer, report.answer_blob
            states = {worker.worker: worker.state for worker in report.workers}
            runs_at = next((w for w, s in states.items() if s is AttemptState.RUNNING), runs_at)
            if runs_at:
                silent = silent + 1 if runs_at not in states else 0
                over = loop.time() >= end_s or silent > UNANSWERED_MAX
                if over or states.get(runs_at, AttemptState.RUNNING) is not AttemptState.RUNNING:
                    raise OutcomeUnknown(_describe_workers(report, runs_at))
            elif report.workers or loop.time() >= absence_end_s:
                raise OutcomeUnknown(_describe_workers(report, runs_at))
            if calling.cancel_requested.is_set():
                self._workers.cancel(past.call_id)
            await asyncio.sleep(pause.next_s())

    # --- one call ---------------------------------------------------------------------------------

    def _job(self, ctx: ToolCallContext, tool: CatalogueTool) -> Job:
        return Job(
            surface=self.surface,
            tool=self._names[ctx.name],
            body=encode_json(CallArguments(args=ctx.args, kwargs=ctx.kwargs)),
            left_ms=0,
            call_id=ctx.call_id,
            idempotency_key=ctx.idempotency_key,
            attempt=ctx.attempt,
            session_id=ctx.session_id,
            run_id=ctx.run_id,
            schema_digest=tool.available.schema_digest,
            traceparent=ctx.traceparent or "",
            credential=_job_credential(ctx.credential),
        )

    async def _submit_until_accepted(
        self, job: Job, calling: _RemoteCall, timeout_ms: int
    ) -> JobOutcome:
        """Offer the job until a worker accepts it or none can be expected."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_ms / 1_000
        absence_end_s = min(end_s, loop.time() + NO_WORKER_TIMEOUT_S)
        pause_s = PAUSE_S_MIN
        while True:
            if not calling.may_act():
                raise NotCalled(job.tool)
            left_ms = max(1, round(1_000 * (end_s - loop.time())))
            end = await self._submit(replace(job, left_ms=left_ms))
            if (
                not isinstance(end, JobNotStarted)
                or end.cancelled
                or calling.cancel_requested.is_set()
            ):
                return end
            if loop.time() + pause_s >= (absence_end_s if end.no_worker else end_s):
                return end
            try:
                await asyncio.wait_for(calling.cancel_requested.wait(), pause_s)
            except TimeoutError:
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                return end

    async def _submit(self, job: Job) -> JobOutcome:
        try:
            return await self._workers.call(job)
        except Failed as failure:
            if not CODES[failure.code].retryable:
                raise
            return JobNotStarted(failure.message)


# --- reports of workers about a lost call ---------------------------------------------------------


def _describe_workers(report: WorkerReports, runs_at: str) -> str:
    """The reports of the workers, for operators."""
    words = [
        _describe_worker(worker) for worker in sorted(report.workers, key=lambda one: one.worker)
    ]
    if runs_at and runs_at not in [worker.worker for worker in report.workers]:
        words.insert(0, f"worker {runs_at} ran it and no longer answers")
    more = len(words) - NAMES_MAX
    words = words[:NAMES_MAX] + ([f"{more} more workers were queried"] if more > 0 else [])
    return "; ".join(words) or "no worker of its surface answers"


def _describe_worker(report: WorkerReport) -> str:
    match report.state:
        case AttemptState.RUNNING:
            return f"worker {report.worker} still runs it"
        case AttemptState.ENDED:
            return f"worker {report.worker} ran it and has dropped the answer"
        case AttemptState.NOT_STARTED:
            back_s = report.remembers_ms / 1_000
            return f"worker {report.worker} has not begun it in the last {back_s:.1f} s"
        case _:
            return f"worker {report.worker} does not know"


# --- catalogues and answers of workers ------------------------------------------------------------


def _decode_catalogue(encoded: bytes) -> WorkerCatalogue:
    try:
        return msgspec.json.decode(encoded, type=WorkerCatalogue)
    except msgspec.MsgspecError as error:
        raise Refused(
            "INVALID_ARGUMENT", f"the catalogue of a worker does not decode: {error}"
        ) from None


def _add_served(served: dict[str, ServedTool], tool: ServedTool, worker: str) -> None:
    """Workers of one surface replace each other, so their schemas must be equal."""
    name = tool.capability.name
    known = served.setdefault(name, tool)
    if schema_digest(known.capability) != schema_digest(tool.capability):
        raise Refused(
            "TOOL_NAME_CONFLICT",
            f"workers of a surface serve different tools {name[:80]}, one is {worker[:80]}",
            hint="stop the older workers, or serve the newer tools as another surface",
        )


async def _checked_outcome(
    checks: CapabilityChecks, body: bytes, credentials: Sequence[ToolCredential] = ()
) -> CallOutcome:
    if len(body) > INLINE_ANSWER_BYTES_MAX:
        return await asyncio.to_thread(_decode_outcome, checks, body, credentials)
    return _decode_outcome(checks, body, credentials)


def _decode_outcome(
    checks: CapabilityChecks, body: bytes, credentials: Sequence[ToolCredential]
) -> CallOutcome:
    """The outcome in a worker's answer, checked against the schema. A worker in another language
    may not have scrubbed it."""
    try:
        answer = msgspec.json.decode(body, type=JobAnswer)
        for credential in credentials:
            answer = _scrubbed(answer, credential)
        if answer.error is not UNSET:
            return CallOutcome(error=fault(answer.error.code, answer.error.message))
        value = None if answer.value is UNSET else answer.value
        return CallOutcome(value=checks.check_result(value).value)
    except (msgspec.MsgspecError, RecursionError) as error:
        return CallOutcome(
            error=fault("SERIALIZE_ERROR", f"the answer of the worker does not decode: {error}")
        )
    except CodedError as error:
        return CallOutcome(error=fault_of(error))


def _has_credential(body: bytes, credentials: Sequence[ToolCredential]) -> bool:
    """Whether a body has a credential, or a part of one, also in fields that are not read."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        decoded = None
    found = (body.decode(errors="replace"), decoded)
    return any(one.scrubber.scrub(each) != each for one in credentials for each in found)


def _job_credential(credential: ToolCredential | None) -> JobCredential | None:
    return None if credential is None else JobCredential(credential.value, credential.scheme)


def _scrubbed(answer: JobAnswer, credential: ToolCredential) -> JobAnswer:
    if answer.credential_rejected:
        credential.reject()
    scrubber = credential.scrubber
    if answer.error is UNSET:
        return replace(answer, value=scrubber.scrub(answer.value))
    wrong = ToolFault(*map(scrubber.scrub_text, (answer.error.code, answer.error.message)))
    return replace(answer, error=wrong)
