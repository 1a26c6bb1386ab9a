"""Runs that an MCP request starts or waits for: until they end, park, or the time is over.

A request that its client cancels cancels the run that it has started. If the client goes away, or
this server stops, the run continues: it is durable, and ``runs_result`` has its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from rookery.bus.client import Client, Handle, read_past_result
from rookery.bus.clock import SystemClock, monotonic_s
from rookery.bus.event_loop import Backoff, TaskSet, wait_first
from rookery.ops.gateways import RealmLink
from rookery.ops.mcp_server.run_report import (
    PATIENCE_S,
    RunReport,
    WaitReport,
    run_report,
    unended_report,
    wait_report,
)
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.replies import RunAnswer, RunList, RunState, RunView, SessionView

__all__ = ["ProgressReporter", "RunFollower", "find_run", "read_result"]

log = logging.getLogger(__name__)

QUICK_S: Final = 0.25
"""A run that ends within this time is not looked for."""
CANCEL_S: Final = 5.0
ABSENCE_S_MAX: Final = 60.0
"""How long a run that was accepted may have no node before the request ends with an error."""
REPEAT_S: Final = 10.0
"""Without news: clients give up requests that are silent for a minute or so."""
FLUSH_S: Final = 0.2
"""Between two notifications with output."""
OUTPUT_CHARS_MAX: Final = 4_000
"""Of output in a notification; the result has the whole."""
RETRY_S: Final = 0.5
CONTINUES_MS: Final = 5_000
"""How soon a run continues after the answer of its approval, if its node is there."""
_NODE_DRAINED: Final = "NODE_DRAINED"
"""The code of a run that continues with the next node: no person has to act."""
_PARKED: Final = (RunState.WAITING_FOR_APPROVAL, RunState.INTERRUPTED)

T = TypeVar("T")
SendProgress = Callable[[float, str], Awaitable[None]]


class ProgressReporter:
    """The notifications of one request: what the run prints, and how far it is."""

    def __init__(self, send: SendProgress | None) -> None:
        """``send``: gets the number and the text of each; ``None`` if the client wants none."""
        self._send = send
        self._number = 0
        self._output = ""
        self._phase = ""
        self._notified_s = 0.0
        self._flushing = TaskSet()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_requested(self) -> bool:
        return self._send is not None

    def add_output(self, text: str) -> None:
        """Text that the run has printed; pieces close together are one notification."""
        self._output += text
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_S, self._start_flush)

    async def report_phase(self, phase: str) -> None:
        """What the run does now; repeated so that a client sees that it goes on."""
        if phase != self._phase or monotonic_s() - self._notified_s >= REPEAT_S:
            self._phase = phase
            await self._notify(phase)

    async def close(self) -> None:
        """Send what is left."""
        if self._timer is not None:
            self._timer.cancel()
        await self._flushing.wait_idle()
        await self._flush()

    def _start_flush(self) -> None:
        self._timer = None
        self._flushing.start(self._flush())

    async def _flush(self) -> None:
        text, self._output = self._output, ""
        if (more := len(text) - OUTPUT_CHARS_MAX) > 0:
            text = f"[{more:,} characters before]\n{text[more:]}"
        if text:
            await self._notify(text)

    async def _notify(self, text: str) -> None:
        if self._send is not None:
            self._number += 1
            self._notified_s = monotonic_s()
            await self._send(self._number, text)


class RunFollower:
    """Starts runs and waits for them. Used on one event loop."""

    def __init__(self, link: RealmLink) -> None:
        self._link = link
        self._tasks = TaskSet()
        self.is_closing = False
        """Whether requests end because this server stops, and not because clients cancel them."""

    async def close(self) -> None:
        """Wait until the runs of cancelled requests are cancelled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CANCEL_S):
                await self._tasks.wait_idle()
        await self._tasks.cancel()

    async def run(
        self,
        session: str,
        fields: Mapping[str, Any],
        progress: ProgressReporter,
        *,
        wait_s: float | None = None,
        message_id: str | None = None,
    ) -> RunReport:
        """Start a run, and wait until it ends, parks, or waits behind a parked one."""
        client = await self._link.client()
        beginning = self._tasks.start(
            client.begin(
                session,
                dict(fields),
                message_id=message_id,
                through_parks=False,
                output=progress.is_requested,
            )
        )
        try:
            handle = await asyncio.shield(beginning)
            return await self._follow(client, handle, progress, wait_s)
        except asyncio.CancelledError:
            if not self.is_closing:
                self._tasks.start(_cancel(beginning))
            raise

    async def result(
        self, run_id: str, progress: ProgressReporter, wait_s: float | None = None
    ) -> RunReport:
        """The result of a run, once it has ended, or what it waits for."""
        view = await find_run(await self._link.client(), run_id)
        return await self._wait(view, progress, _deadline(wait_s))

    async def report(self, view: RunView) -> RunReport:
        """The report of a run that has not ended."""
        return unended_report(view, await _wait_of(await self._link.client(), view) or UNSET)

    async def _follow(
        self, client: Client, handle: Handle, progress: ProgressReporter, wait_s: float | None
    ) -> RunReport:
        until_s, replying, output = _deadline(wait_s), handle.reply_task(), TaskSet()
        if progress.is_requested:
            output.start(_follow_output(handle, progress))
        try:
            if await wait_first({replying}, QUICK_S):
                answer = await client.complete_result(_result_of(replying))
                if RunState(answer.status).is_end:
                    return run_report(answer)
                run_id = answer.run_id
            else:
                run_id = await _accepted(handle)
            view = await self._find_patiently(run_id, progress)
            return await self._wait(view, progress, until_s, replying)
        except Failed as failure:
            if not CODES[failure.code].retryable:
                raise
            raise _unanswered(handle, failure) from None
        finally:
            await output.cancel()
            await progress.close()

    async def _wait(
        self,
        view: RunView,
        progress: ProgressReporter,
        until_s: float,
        replying: asyncio.Future[Any] | None = None,
    ) -> RunReport:
        """Wait until the run ends or a person has to act; ``replying``: done not before then."""
        pause = Backoff(0.1, 2.0, growth=1.5)
        while not view.status.is_end:
            await progress.report_phase(_phase(view))
            if monotonic_s() >= until_s or await self._must_act(view):
                return await self.report(view)
            pause_s = min(pause.next_s(), max(0.0, until_s - monotonic_s()))
            if replying is None or replying.done():
                await asyncio.sleep(pause_s)
            else:
                await wait_first({replying}, pause_s)
            view = await self._find_patiently(view.run_id, progress)
        return run_report(await read_result(await self._link.client(), view))

    async def _find_patiently(self, run_id: str, progress: ProgressReporter) -> RunView:
        """The present state of a run, also if its node or its server is away for a while."""
        until_s = monotonic_s() + ABSENCE_S_MAX
        while True:
            try:
                return await find_run(await self._link.client(), run_id)
            except Failed as failure:
                if not CODES[failure.code].retryable or monotonic_s() >= until_s:
                    raise
                await progress.report_phase(f"run {run_id}: {failure.message}")
                await asyncio.sleep(RETRY_S)

    async def _must_act(self, view: RunView) -> bool:
        """Whether a person has to act before the run, or the one before it, goes on."""
        client = await self._link.client()
        if view.status is RunState.QUEUED:
            session = msgspec.convert(await client.session(view.session_id), SessionView)
            current = session.current_run_id
            if current is None or current == view.run_id:
                return False
            view = await find_run(client, current)
        return view.status in _PARKED and not await _continues_soon(client, view)


async def find_run(client: Client, run_id: str) -> RunView:
    """The present state of a run; ``Refused`` if there is none of this id."""
    query = RunsQuery(run_id=run_id)
    found = msgspec.convert(await client.ask("runs", "all", query, timeout_s=PATIENCE_S), RunList)
    if not found.runs:
        raise Refused(
            "RUN_NOT_FOUND", f"no run {run_id[:80]!r} in this realm", hint="runs_list lists them"
        )
    return found.runs[0]


async def read_result(client: Client, view: RunView) -> RunAnswer:
    """The result of a run that has ended."""
    before = int(view.position.partition(".")[0]) - 1
    journal, blobs = client.journal, client.blobs
    return await read_past_result(journal, blobs, view.session_id, view.run_id, before)


async def _wait_of(client: Client, view: RunView) -> WaitReport | None:
    if view.waits_for is None:
        return None
    waiting: list[Any] = []
    if view.status is RunState.WAITING_FOR_APPROVAL:
        approvals = await client.approvals(view.session_id)
        waiting = [one for one in approvals if one.run_id == view.run_id]
    return wait_report(view.waits_for, waiting)


async def _continues_soon(client: Client, view: RunView) -> bool:
    """Whether a parked run is about to continue: with the next node, or because its approval was
    answered a moment ago."""
    if view.code == _NODE_DRAINED:
        return True
    if view.status is not RunState.WAITING_FOR_APPROVAL or view.waits_for is None:
        return False
    now_ms = SystemClock().now_ms()
    for operation_id in view.waits_for.operation_ids:
        approval = await client.approval(f"{view.session_id}.{operation_id}")
        if approval.ended_at_ms is None or now_ms - approval.ended_at_ms >= CONTINUES_MS:
            return False
    return bool(view.waits_for.operation_ids)


def _phase(view: RunView) -> str:
    waits = "" if view.waits_for is None else f", waits for {view.waits_for.what}"
    return f"run {view.run_id} is {view.status.value.replace('_', ' ')}{waits}"


def _deadline(wait_s: float | None) -> float:
    return float("inf") if wait_s is None else monotonic_s() + wait_s


async def _follow_output(handle: Handle, progress: ProgressReporter) -> None:
    with suppress(CodedError):
        async with aclosing(handle.output()) as pieces:
            async for piece in pieces:
                progress.add_output(piece.text)


async def _accepted(handle: Handle) -> str:
    """The run's id. An end of the client's tasks is an error, and no cancellation of this one."""
    accepting = asyncio.ensure_future(handle.accepted())
    try:
        await wait_first({accepting})
    finally:
        accepting.cancel()
    return _result_of(accepting)


def _result_of(task: asyncio.Task[T]) -> T:
    if task.cancelled():
        raise Failed("NO_ANSWER", "the server has moved before the reply")
    return task.result()


def _unanswered(handle: Handle, failure: Failed) -> Failed:
    """The error for a run without a reply: it may still run, so it is not to be repeated."""
    if handle.run_id:
        return Failed(
            "NO_ANSWER",
            f"run {handle.run_id} was accepted and continues when a node replies: "
            f"{failure.message}",
            hint=f"runs_result with run_id {handle.run_id}",
        )
    once = f"run_code with message_id {handle.message_id} starts no second run"
    return Failed(
        failure.code,
        f"{failure.message}; the run may have been accepted",
        hint="; ".join(filter(None, [failure.hint, "runs_list shows whether it was", once])),
    )


async def _cancel(beginning: asyncio.Task[Handle]) -> None:
    """Cancel the run of a request that its client has cancelled."""
    try:
        async with asyncio.timeout(CANCEL_S):
            handle = await beginning
            await handle.cancel(reason="the MCP client cancelled its request")
    except (CodedError, TimeoutError) as error:
        log.warning("run not cancelled", extra={"reason": str(error) or "no node answers"})
