"""Attempts of calls in this process: which are begun, and the waits for their progress."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.credentials import CredentialSource, read_credential, read_past, report_rejected
from rookery.actors.messages import CallProgress
from rookery.actors.tools.attempts.call_slots import CallAttempt
from rookery.actors.tools.authoring.registry import ToolCallContext, ToolCredential
from rookery.actors.tools.hosts.host import NotCalled, OutcomeUnknown, TaskCreated
from rookery.actors.tools.state import ToolCall
from rookery.actors.tools.validation.capability_checks import fault, fault_of, logged_fault
from rookery.bus.ports import wait_first
from rookery.schemas.calls import CallArguments, CallOutcome
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import CODES, CodedError

__all__ = [
    "AttemptCache",
    "AttemptResult",
    "CallNotifier",
    "attempt_result",
    "call_context",
    "call_with_credential",
    "failed_attempt",
    "past_credentials",
]

# --- attempt cache --------------------------------------------------------------------------------

# The attempts of calls that this process has begun, so that it begins none twice.
#
# A result stays until it is committed. If the session has moved to another node, it may never be,
# so the cache is bounded: when a result is evicted, a marker of some hundred bytes remains, and the
# outcome of that attempt counts as unknown.


HELD_BYTES_MAX: Final = 64 << 20
OVERHEAD_BYTES: Final = 1 << 10
"""Per result, beside its value."""


class AttemptResult(NamedTuple):
    outcome: CallOutcome
    text: bytes
    """The value's canonical JSON; empty for an error."""
    unknown_reason: str = ""
    """Why the outcome is unknown; empty if it is known."""
    called: bool = True
    """If false, the tool was not called, and the attempt may begin again."""
    task: str = ""
    """The task of its surface by which the call goes on; empty if it has ended."""
    task_left_ms: int = 0
    """How long the task may take from now; 0: as long as its call may."""

    @property
    def metrics_outcome(self) -> str:
        """The outcome as the metrics count it."""
        if self.unknown_reason or not self.called:
            return "unknown" if self.called else "not_called"
        if self.task:
            return "awaited"
        if self.outcome.error is UNSET:
            return "completed"
        return "timed_out" if self.outcome.error.code == "TIMEOUT_TOOL" else "failed"


class AttemptCache:
    """One per node; lives on the bus loop."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self._attempts: dict[CallAttempt, asyncio.Future[AttemptResult]] = {}
        self._retained: OrderedDict[CallAttempt, int] = OrderedDict()
        """Bytes of each retained result, the oldest first."""
        self._held_bytes = 0

    def get(self, attempt: CallAttempt) -> asyncio.Future[AttemptResult] | None:
        return self._attempts.get(attempt)

    def begin(
        self, attempt: CallAttempt, work: Coroutine[Any, Any, AttemptResult]
    ) -> asyncio.Future[AttemptResult]:
        begun = asyncio.ensure_future(work)
        self._attempts[attempt] = begun
        begun.add_done_callback(lambda ended: self._retain(attempt, ended))
        return begun

    def put(self, attempt: CallAttempt, result: AttemptResult) -> asyncio.Future[AttemptResult]:
        """Add an attempt that has ended."""
        ended = _ended(result)
        self._attempts[attempt] = ended
        self._retain(attempt, ended)
        return ended

    def confirm(self, attempt: CallAttempt) -> None:
        """Drop a result that was committed."""
        self._attempts.pop(attempt, None)
        self._held_bytes -= self._retained.pop(attempt, 0)

    def _retain(self, attempt: CallAttempt, ended: asyncio.Future[AttemptResult]) -> None:
        if self._attempts.get(attempt) is not ended or ended.cancelled() or ended.exception():
            return
        if not ended.result().called:
            del self._attempts[attempt]
            return
        self._retained[attempt] = OVERHEAD_BYTES + len(ended.result().text)
        self._held_bytes += self._retained[attempt]
        while self._held_bytes > self._held_bytes_max:
            oldest, size_bytes = self._retained.popitem(last=False)
            self._held_bytes -= size_bytes
            self._attempts[oldest] = _evicted_result()


def _evicted_result() -> asyncio.Future[AttemptResult]:
    reason = "its result was evicted before it was committed"
    return _ended(AttemptResult(CallOutcome(), b"", reason))


def _ended(result: AttemptResult) -> asyncio.Future[AttemptResult]:
    ended: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
    ended.set_result(result)
    return ended


def attempt_result(outcome: CallOutcome) -> AttemptResult:
    """The outcome, cut to the limits of storage."""
    if outcome.error is not UNSET:
        wrong = fault(outcome.error.code, outcome.error.message)
        return AttemptResult(replace(outcome, error=wrong), b"")
    return AttemptResult(outcome, canonical_json(outcome.value))


def call_context(session: str, call: ToolCall, arguments: CallArguments) -> ToolCallContext:
    """What a tool learns of its call."""
    return ToolCallContext(
        name=call.name,
        args=arguments.args,
        kwargs=arguments.kwargs,
        idempotency_key=call.operation_id,
        session_id=session,
        run_id=call.run,
        call_id=call.operation_id,
        attempt=call.attempt,
        deadline_ms=call.deadline_at_ms,
        traceparent=None if call.traceparent is UNSET else call.traceparent,
        schema_digest=call.schema_digest,
    )


def failed_attempt(name: str, call_id: str, error: Exception, *, sensitive: bool) -> AttemptResult:
    """Hosts return failures; any exception but their own is a defect and fails the call."""
    match error:
        case TaskCreated(task=task, left_ms=left_ms):
            return AttemptResult(CallOutcome(), b"", task=task, task_left_ms=left_ms)
        case OutcomeUnknown():
            reason = fault("RECOVERY_REQUIRED", str(error) or "its host gave no reason").message
            return AttemptResult(CallOutcome(), b"", reason)
        case NotCalled():
            return AttemptResult(CallOutcome(), b"", called=False)
    wrong = logged_fault(name, call_id, error, sensitive=sensitive)
    return AttemptResult(CallOutcome(error=wrong), b"")


# --- call notifier --------------------------------------------------------------------------------

# The call notifier: drivers wait for the progress of calls, and running calls learn that their run
# is ending.
#
# In memory, per node, used on the bus loop. Everything it carries is committed too: a driver that
# missed a notification queries the actor.


RECORD_ALONE_S: Final = 0.005
"""How long a driver may take to record an outcome with its next step."""
RESUME_TURNS: Final = 8
"""Turns of a busy loop from an outcome to the step that continues with it, and some more."""


class CallNotifier:
    """One per node."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[CallProgress]] = {}
        self._steps: dict[str, asyncio.Future[None]] = {}
        self._cancels: dict[str, list[tuple[str, Callable[[], None]]]] = {}
        self._dropped: set[str] = set()

    def future(self, operation_id: str) -> asyncio.Future[CallProgress]:
        """The next progress of the call. Create the future before the call is committed: the
        notifier drops progress without one."""
        future = self._futures.get(operation_id)
        if future is None or future.done():
            future = asyncio.get_running_loop().create_future()
            self._futures[operation_id] = future
            future.add_done_callback(lambda future: self._remove(operation_id, future))
        return future

    def pass_unrecorded(self, progress: CallProgress) -> asyncio.Future[CallProgress] | None:
        """Pass an outcome that is not recorded yet to the waiting driver, which records it with its
        next step. The future is done once the outcome is committed; ``None``: no driver waits."""
        future = self._futures.get(progress.operation_id)
        if future is None or future.done():
            return None
        future.set_result(progress)
        return self.future(progress.operation_id)

    def begin_step(self, operation_ids: Iterable[str]) -> asyncio.Future[None]:
        """A driver commits a step with the outcomes of these calls from now on, until it resolves
        the future, whether the step is committed or not."""
        step = asyncio.get_running_loop().create_future()
        ids = tuple(operation_ids)
        self._steps.update(dict.fromkeys(ids, step))
        step.add_done_callback(lambda _: self._end_step(ids))
        return step

    async def is_recorded(self, operation_id: str, recorded: asyncio.Future[CallProgress]) -> bool:
        """Whether the driver's next step records the outcome. A busy loop may resume the program
        late, and commit its step later still: then a second record would only add to the load."""
        await wait_first((recorded,), RECORD_ALONE_S)
        step = self._steps.get(operation_id)
        for _ in range(RESUME_TURNS):
            if step is not None or recorded.done():
                break
            await asyncio.sleep(0)
            step = self._steps.get(operation_id)
        if step is not None:
            await wait_first((recorded, step))
        # A driver that has begun meanwhile waits for the same future, and may cancel it.
        return recorded.done() and not recorded.cancelled()

    def notify(self, progress: CallProgress) -> None:
        """The call has ended, or waits for an approver or operator."""
        if progress.outcome is not UNSET:
            self._dropped.discard(progress.operation_id)
        future = self._futures.get(progress.operation_id)
        if future is not None and not future.done():
            future.set_result(progress)

    def cancel_run(self, run_id: str) -> None:
        """Cancel the run's running calls. Their outcomes are still committed."""
        for _, cancel in tuple(self._cancels.get(run_id, ())):
            cancel()

    def drop(self, run_id: str, operation_id: str) -> None:
        """Cancel a call the program no longer waits for; if it has not begun, it does not begin."""
        self._dropped.add(operation_id)
        for operation, cancel in tuple(self._cancels.get(run_id, ())):
            if operation == operation_id:
                cancel()

    def is_dropped(self, operation_id: str) -> bool:
        return operation_id in self._dropped

    @contextmanager
    def cancel_scope(
        self, run_id: str, operation_id: str, cancel: Callable[[], None]
    ) -> Iterator[None]:
        """Call ``cancel`` if the run ends or drops the call within this scope."""
        cancels, entry = self._cancels.setdefault(run_id, []), (operation_id, cancel)
        cancels.append(entry)
        try:
            yield
        finally:
            cancels.remove(entry)
            if not cancels:
                self._cancels.pop(run_id, None)

    def _end_step(self, operation_ids: Iterable[str]) -> None:
        for operation_id in operation_ids:
            self._steps.pop(operation_id, None)

    def _remove(self, operation_id: str, future: asyncio.Future[CallProgress]) -> None:
        if self._futures.get(operation_id) is future:
            del self._futures[operation_id]


# --- credentials of attempts ----------------------------------------------------------------------

# Calls of tools with the credential of a binding.
#
# A call whose service refuses the credential fails, and its lease is refreshed for the next one.
# It is not made again: its tool may have acted before the refusal, and an attempt is one
# execution.


async def call_with_credential(
    source: CredentialSource,
    binding: str,
    call: Callable[[ToolCredential], Awaitable[CallOutcome]],
) -> CallOutcome:
    """The outcome of a call whose intent is recorded."""
    try:
        credential = await read_credential(source, binding)
    except CodedError as error:
        return CallOutcome(error=fault_of(error))
    outcome = await call(credential)
    if not credential.is_rejected:
        return outcome
    await report_rejected(source, binding, credential)
    text = f"a service refused the credential of the lease {binding}, which is refreshed now"
    if outcome.error is not UNSET:  # What the tool said of the refusal.
        text = f"{text}: {outcome.error.message}"
    return CallOutcome(error=fault("CREDENTIAL_REJECTED", text))


async def past_credentials(
    source: CredentialSource, call: ToolCall, binding: str, since_ms: int
) -> tuple[ToolCredential, ...]:
    """The credentials that an attempt may have had. If one of them is deleted, its answer cannot be
    scrubbed, and so is not read."""
    if not binding:
        return ()
    try:
        return await read_past(source, binding, since_ms)
    except CodedError as error:
        if CODES[error.code].retryable:
            raise
        reason = f"the answer to {call.name} may have a credential: {error.message}"
        raise OutcomeUnknown(reason) from None
