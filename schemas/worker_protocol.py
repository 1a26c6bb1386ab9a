"""Calls of tools that workers serve: what nodes and workers say to each other.

The bodies are JSON on the wire, for workers in any language; the rest travels in headers, as
``bus/workers/protocol.py`` says. Unknown fields are ignored, so either side may be the newer one.
Who is called, and what follows from no answer, is not said here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import ToolFault
from rookery.schemas.capability import Capability

__all__ = [
    "GRACE_MS",
    "AttemptReport",
    "AttemptState",
    "Job",
    "JobAnswer",
    "JobAnswered",
    "JobNotStarted",
    "JobOutcome",
    "JobOutcomeUnknown",
    "RunningJob",
    "ServedTool",
    "WorkerCatalogue",
    "WorkerHealth",
    "WorkerReport",
    "WorkerReports",
]

GRACE_MS: Final = 1_000
"""A worker keeps the time of a job; its last word may take so long to arrive."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one call."""

    surface: str
    tool: str
    """As the worker calls it."""
    body: bytes
    """``CallArguments`` as JSON."""
    left_ms: int
    """So long the answer is wanted, from when this is read: clocks are not compared."""
    call_id: str = ""
    """The operation: the same for every try."""
    idempotency_key: str = ""
    attempt: int = 1
    session_id: str = ""
    run_id: str = ""
    schema_digest: str = ""
    """Of the schemas the arguments were checked with; a worker with others has to decline."""
    traceparent: str = ""
    id: str = ""
    """Which try this is, as the bus tells them apart; empty until it is sent."""


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker answers: one of the two. A value it leaves out is null."""

    value: Any = UNSET
    error: ToolFault | UnsetType = UNSET


class JobAnswered(msgspec.Struct, frozen=True):
    """A worker has answered, with a ``JobAnswer``."""

    body: bytes


class JobNotStarted(msgspec.Struct, frozen=True):
    """Nobody has begun, and nobody will: to ask again is safe."""

    reason: str
    no_worker: bool = False
    """No worker serves the tool; else those asked had no room, or are about to leave."""
    cancelled: bool = False
    """This attempt is not to begin anywhere: it was called off, or a later one has come."""


class JobOutcomeUnknown(msgspec.Struct, frozen=True):
    """Nobody can say whether the tool has acted."""

    reason: str


JobOutcome = JobAnswered | JobNotStarted | JobOutcomeUnknown


class ServedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its worker declares it."""

    capability: Capability
    awaited: bool = False


class WorkerCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker serves."""

    worker: str
    tools: tuple[ServedTool, ...]


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tool: str = ""
    call_id: str = ""
    run_id: str = ""


class AttemptState(StrEnum):
    """What became of an attempt of a call at one worker."""

    RUNNING = "running"
    ENDED = "ended"
    """It was answered; the answer follows if it is still kept."""
    UNKNOWN = "unknown"
    """The worker had it and cannot say, or has had a later attempt."""
    NOT_STARTED = "not-begun"
    """The worker has not begun it as far back as it remembers, and never will."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's word on one attempt it was asked after."""

    call: str
    attempt: int
    state: AttemptState
    id: str = ""
    """Of the job, if it runs."""


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is doing."""

    worker: str
    draining: bool = False
    running: tuple[RunningJob, ...] = ()
    calls: tuple[AttemptReport, ...] = ()
    """Those it was asked after."""
    remembers_ms: int = 0
    """So far back it knows of all calls; a worker that was started anew knows of none before."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's word on an attempt, as a node hears it."""

    worker: str
    state: AttemptState | None = None
    """``None`` from a worker that does not answer such questions."""
    remembers_ms: int = 0


class WorkerReports(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a surface said of an attempt."""

    workers: tuple[WorkerReport, ...] = ()
    """Those that answered."""
    answer: bytes | None = None
    """The attempt's ``JobAnswer``, if a worker keeps it."""
