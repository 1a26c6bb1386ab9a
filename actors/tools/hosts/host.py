"""The port of tool hosts, which call tools whose intent is committed.

A host enforces the timeout of a call, forwards its cancellation, and returns only values that match
the schema of the tool. It tries no call twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rookery.actors.tools.authoring.registry import ToolCallContext, ToolCredential
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import CODES, CodedError

__all__ = [
    "NotCalled",
    "OutcomeUnknown",
    "PastAttempt",
    "TaskCreated",
    "ToolHost",
    "always_allowed",
    "query_host",
]


class OutcomeUnknown(Exception):
    """The tool may have acted; ``str`` says why the outcome is unknown."""


class NotCalled(Exception):
    """The tool was not called, because this node may have lost the session."""


def always_allowed() -> bool:
    """For hosts without sessions."""
    return True


class TaskCreated(Exception):
    """The call goes on as a task of its surface: it may take hours, and outlive this process."""

    def __init__(self, task: str, left_ms: int = 0) -> None:
        """``left_ms``: how long the task may take from now; 0: as long as its call may."""
        super().__init__(task)
        self.task, self.left_ms = task, left_ms


class PastAttempt(NamedTuple):
    """An attempt of another process, or one of this process without an outcome."""

    name: str
    call_id: str
    attempt: int
    schema_digest: str
    """The schema of the tool when it was called."""
    left_ms: int
    """How long the tool may still act; negative after that."""
    credentials: tuple[ToolCredential, ...] = ()
    """Those that the attempt may have had; the answer is scrubbed of them."""


class ToolHost(Protocol):
    """Calls the tools of one surface. Used on the bus loop."""

    surface: str
    """The surface of its tools in the catalogue."""

    async def wait_ready(self, name: str) -> None:
        """Wait until the tool can be called."""

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = always_allowed
    ) -> CallOutcome:
        """The outcome of a call within its timeout: a value that matches the tool's schema, or an
        error. The host sets ``ctx.cancelled``. Raises ``OutcomeUnknown``, also if an attempt after
        the first did not begin; raises ``NotCalled`` if ``may_act``, checked last and from any
        thread, is false; and ``TaskCreated`` if the call goes on as a task of the surface."""

    def call_quickly(self, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome | None:
        """Call a function that never blocks, on this loop: ``call`` without a wait, and without a
        time-out. ``None``: the tool is no such function and was not called."""

    def cancel(self, call_id: str) -> None:
        """Cancel a call whose result is no longer needed; it may end sooner."""

    async def wait_finished(self, call_id: str) -> None:
        """Wait until nothing of a call runs any more: a function may outlive its timeout."""

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        """The outcome of a past attempt, as soon as a worker has it. A worker that has not begun
        the attempt cancels it. Raises ``OutcomeUnknown`` with the reports of the workers."""

    async def follow_task(self, past: PastAttempt, task: str) -> CallOutcome:
        """The outcome of a call that goes on as a task, as soon as it has one; ``cancel`` ends it.
        Raises ``Failed`` with ``SURFACE_UNAVAILABLE`` while the surface cannot be reached, and
        ``OutcomeUnknown`` if it does not know the task."""


async def query_host(host: ToolHost, past: PastAttempt) -> CallOutcome:
    """What the host's workers report; an unreadable report raises ``OutcomeUnknown``."""
    try:
        return await host.query_outcome(past)
    except CodedError as error:
        if CODES[error.code].retryable:
            raise
        raise OutcomeUnknown(f"the answer of its worker does not decode: {error}") from error
