"""Where tools are called: the port, and the one that calls functions of this process.

A host is given calls whose intent stands. It keeps their time, passes on that nobody wants them any
more, and answers what its tools declared and nothing else. It knows no ledger and tries nothing
twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from rookery.actors.tools.authoring.registry import (
    ToolCallContext,
)
from rookery.schemas.calls import CallOutcome

__all__ = ["NotCalled", "OutcomeUnknown", "PastAttempt", "ToolHost", "always_allowed"]


class OutcomeUnknown(Exception):
    """The tool may have acted, or not; ``str`` says why nobody knows."""


class NotCalled(Exception):
    """The tool was not called: this node may have lost the session to another one."""


def always_allowed() -> bool:
    """For a host that acts for nobody but itself."""
    return True


class PastAttempt(NamedTuple):
    """A try of another process, or one of this process whose outcome did not arrive."""

    name: str
    call_id: str
    attempt: int
    schema_digest: str
    """Of the tool as it was called."""
    left_ms: int
    """So long the tool may still act; below zero once that is over."""


class ToolHost(Protocol):
    """Calls the tools of one surface. Used on the bus's loop."""

    async def wait_ready(self, name: str) -> None:
        """Wait until the tool can be called."""

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = always_allowed
    ) -> CallOutcome:
        """What came of a call within its time: a value that fits what the tool declared, or an
        error. ``ctx.cancelled`` is the host's to fill in. Or ``OutcomeUnknown``, also where a
        try that is not the first did not begin. Or ``NotCalled``, where ``may_act``, asked at the
        last moment and from any thread, says no."""

    def cancel(self, call_id: str) -> None:
        """Nobody wants the answer any more; the call may end sooner, or not."""

    async def wait_finished(self, call_id: str) -> None:
        """Wait until nothing of a call runs any more: after a time-out a function still may."""

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        """The outcome of a past try, as soon as a worker of its tool has it. A worker that has not
        begun the try calls it off. Else ``OutcomeUnknown``, with what the workers say."""
