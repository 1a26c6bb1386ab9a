"""The tools of a surface that workers serve, as a node calls them.

Which tools there are is asked once, when the node starts; who of the workers does a call is the
server's to choose. A call nobody has begun is offered again while there is time, what a worker
answers is held to what it declared. Of one whose outcome nobody knows that is said, and no more: it
may have acted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.checks import CallChecks, schema_digest
from rookery.actors.tools.host import NotCalled, OutcomeUnknown, always
from rookery.actors.tools.pipeline import fault, fault_of
from rookery.actors.tools.registry import ToolCallContext
from rookery.actors.tools.visible import LOCAL, VisibleTool, visible_name
from rookery.bus.ports import Crews
from rookery.schemas.calls import Arguments, CallOutcome
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.work import Catalogue, Job, JobAnswer, JobEnd, JobUnknown, NotBegun, ServedTool

__all__ = ["PATIENCE_S", "RemoteTools", "check_surface"]

PATIENCE_S: Final = 10.0
"""How long a node that starts waits for the first worker of a surface."""
ABSENCE_S: Final = 1.0
"""How long there may be no worker at all before a call fails: one may be changing places."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.5
ANSWER_BYTES_MAX: Final = 64 << 10
"""Larger ones are looked at on a thread."""

_SURFACE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class _Calling:
    """A call until its host has answered."""

    def __init__(self, may_act: Callable[[], bool]) -> None:
        self.unwanted, self.may_act = asyncio.Event(), may_act


class RemoteTools:
    """Port ``ToolHost``."""

    def __init__(self, crews: Crews, surface: str, served: dict[str, ServedTool]) -> None:
        """``served``: by the name workers know."""
        self._crews, self.surface = crews, surface
        self._names: dict[str, str] = {}
        self.visible: list[VisibleTool] = []
        for name, one in served.items():
            seen = visible_name(surface, name)
            capability = replace(one.capability, name=seen)
            self.visible.append(VisibleTool.of(surface, capability, awaited=one.awaited))
            self._names[seen] = name
        self._tools = {tool.capability.name: tool for tool in self.visible}
        self._calls: dict[str, _Calling] = {}

    @classmethod
    async def find(
        cls, crews: Crews, surface: str, *, patience_s: float = PATIENCE_S
    ) -> RemoteTools:
        """What the surface's workers serve, all of them together, or a coded error."""
        check_surface(surface)
        served: dict[str, ServedTool] = {}
        told = await crews.catalogues(surface, patience_s)
        if not told:
            raise Failed(
                "WORKER_UNAVAILABLE",
                f"no worker serves {surface}, waited {patience_s:g} s",
                hint=f"rookery tools serve MODULE:OBJECT --surface {surface}",
            )
        for catalogue in sorted(map(_catalogue, told), key=lambda catalogue: catalogue.worker):
            for tool in catalogue.tools:
                _add(served, tool, catalogue.worker)
        return cls(crews, surface, served)

    # --- port ToolHost ----------------------------------------------------------------------------

    async def ready(self, name: str) -> None:
        wanted = self._names[name], self._tools[name].offered.schema_digest
        while True:
            for told in await self._crews.catalogues(self.surface, PATIENCE_S):
                with suppress(Refused):
                    tools = [tool.capability for tool in _catalogue(told).tools]
                    if wanted in [(tool.name, schema_digest(tool)) for tool in tools]:
                        return
            await asyncio.sleep(PAUSE_S_MAX)

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = always
    ) -> CallOutcome:
        tool = self._tools[ctx.name]
        calling = self._calls[ctx.call_id] = _Calling(may_act)
        try:
            end = await self._end(self._job(ctx, tool), calling, timeout_ms)
        except CodedError as error:
            return CallOutcome(error=fault_of(error))
        finally:
            del self._calls[ctx.call_id]
        unwanted = calling.unwanted.is_set()
        match end:
            case NotBegun(reason=reason) if ctx.attempt == 1:
                code = "CANCELLED" if unwanted else "WORKER_UNAVAILABLE"
                return CallOutcome(error=fault(code, f"{ctx.name} was not called: {reason}"))
            case NotBegun(reason=reason) | JobUnknown(reason=reason):
                if unwanted and tool.capability.idempotent:
                    return CallOutcome(error=fault("CANCELLED", f"{ctx.name}: {reason}"))
                raise OutcomeUnknown(reason)
        return await _checked(tool.checks, end.body)

    def cancel(self, call_id: str) -> None:
        if (calling := self._calls.get(call_id)) is not None:
            calling.unwanted.set()
            self._crews.cancel(call_id)

    async def gone(self, call_id: str) -> None:
        """A function that outlives its call takes room of its worker's, and none here."""

    # --- one call ---------------------------------------------------------------------------------

    def _job(self, ctx: ToolCallContext, tool: VisibleTool) -> Job:
        return Job(
            surface=self.surface,
            tool=self._names[ctx.name],
            body=encode_json(Arguments(args=ctx.args, kwargs=ctx.kwargs)),
            left_ms=0,
            call_id=ctx.call_id,
            idempotency_key=ctx.idempotency_key,
            attempt=ctx.attempt,
            session_id=ctx.session_id,
            run_id=ctx.run_id,
            schema_digest=tool.offered.schema_digest,
            traceparent=ctx.traceparent or "",
        )

    async def _end(self, job: Job, calling: _Calling, timeout_ms: int) -> JobEnd:
        """Offer the job until somebody takes it, or nobody can be expected to."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_ms / 1_000
        absence_end_s = min(end_s, loop.time() + ABSENCE_S)
        pause_s = PAUSE_S_MIN
        while True:
            if not calling.may_act():
                raise NotCalled(job.tool)
            left_ms = max(1, round(1_000 * (end_s - loop.time())))
            end = await self._offered(replace(job, left_ms=left_ms))
            if not isinstance(end, NotBegun) or calling.unwanted.is_set():
                return end
            if loop.time() + pause_s >= (absence_end_s if end.nobody else end_s):
                return end
            try:
                await asyncio.wait_for(calling.unwanted.wait(), pause_s)
            except TimeoutError:
                pause_s = min(2 * pause_s, PAUSE_S_MAX)
            else:
                return end

    async def _offered(self, job: Job) -> JobEnd:
        try:
            return await self._crews.call(job)
        except Failed as failure:
            if not CODES[failure.code].retryable:
                raise
            return NotBegun(failure.message)


def check_surface(surface: str) -> None:
    """Refuse what cannot be the name of a surface that workers serve."""
    if not _SURFACE.fullmatch(surface):
        raise Refused(
            "INVALID_ARGUMENT",
            f"surface {surface[:80]!r} must be 1 to 64 letters, digits, '-' or '_'",
        )
    if surface == LOCAL:
        raise Refused("INVALID_ARGUMENT", f"{LOCAL} is the surface of each node's own functions")


# --- what workers say -----------------------------------------------------------------------------


def _catalogue(told: bytes) -> Catalogue:
    try:
        return msgspec.json.decode(told, type=Catalogue)
    except msgspec.MsgspecError as error:
        raise Refused("INVALID_ARGUMENT", f"a worker's catalogue is none: {error}") from None


def _add(served: dict[str, ServedTool], tool: ServedTool, worker: str) -> None:
    """Workers of one surface stand in for each other, so they have to agree."""
    name = tool.capability.name
    known = served.setdefault(name, tool)
    if schema_digest(known.capability) != schema_digest(tool.capability):
        raise Refused(
            "TOOL_NAME_CONFLICT",
            f"the workers of a surface serve different tools {name[:80]}, {worker[:80]} is one",
            hint="stop the older workers, or serve the newer tools as another surface",
        )


async def _checked(checks: CallChecks, body: bytes) -> CallOutcome:
    if len(body) > ANSWER_BYTES_MAX:
        return await asyncio.to_thread(_outcome, checks, body)
    return _outcome(checks, body)


def _outcome(checks: CallChecks, body: bytes) -> CallOutcome:
    """What a worker answered, if it is what the tool declared."""
    try:
        answer = msgspec.json.decode(body, type=JobAnswer)
        if answer.error is not UNSET:
            return CallOutcome(error=fault(answer.error.code, answer.error.message))
        value = None if answer.value is UNSET else answer.value
        return CallOutcome(value=checks.response(value).value)
    except (msgspec.MsgspecError, RecursionError) as error:
        return CallOutcome(error=fault("SERIALIZE_ERROR", f"the worker's answer is none: {error}"))
    except CodedError as error:
        return CallOutcome(error=fault_of(error))
