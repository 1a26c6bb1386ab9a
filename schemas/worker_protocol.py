"""Messages between nodes and workers: calls of the tools that workers serve.

Bodies are JSON, for workers in any language; the rest is in headers (``bus/workers/protocol.py``).
Unknown fields are ignored, so either side may be the newer one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import Capability, ToolFault

__all__ = [
    "GRACE_MS",
    "AttemptReport",
    "AttemptState",
    "Job",
    "JobAnswer",
    "JobAnswered",
    "JobCredential",
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
"""How much later than a job's deadline its last message may arrive. The worker checks the
deadline."""


class JobCredential(msgspec.Struct, frozen=True):
    """The credential of a tool's binding; it shows nothing of itself."""

    value: str
    scheme: str = "Bearer"

    def __repr__(self) -> str:
        return "<JobCredential>"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one call."""

    surface: str
    tool: str
    """Name of the tool at the worker."""
    body: bytes
    """``CallArguments`` as JSON."""
    left_ms: int
    """Time left for the job when it is read, so that clocks need not agree."""
    call_id: str = ""
    """Id of the operation: the same for every attempt."""
    idempotency_key: str = ""
    attempt: int = 1
    session_id: str = ""
    run_id: str = ""
    schema_digest: str = ""
    """Digest of the schemas the arguments were checked with; a worker with others rejects the
    job."""
    traceparent: str = ""
    credential: JobCredential | None = None
    """What the tool's binding names; it is never stored."""
    id: str = ""
    """Id of the attempt on the bus; empty until it is sent."""


class JobAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker's result: a value or an error. An absent value is null."""

    value: Any = UNSET
    error: ToolFault | UnsetType = UNSET
    credential_rejected: bool = False
    """Whether the tool's service refused the credential, as with status 401."""


class JobAnswered(msgspec.Struct, frozen=True):
    """A worker replied with a ``JobAnswer``."""

    body: bytes
    blob: str = ""
    """The blob in which the worker stored the body, if it did."""


class JobNotStarted(msgspec.Struct, frozen=True):
    """The job has not started and will not start: repeating the call is safe."""

    reason: str
    no_worker: bool = False
    """The tool has no worker; otherwise its workers are at capacity, or draining."""
    cancelled: bool = False
    """This attempt must not start: it was cancelled, or a later one exists."""


class JobOutcomeUnknown(msgspec.Struct, frozen=True):
    """It is unknown whether the tool has acted."""

    reason: str


JobOutcome = JobAnswered | JobNotStarted | JobOutcomeUnknown


class ServedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a tool by its worker."""

    capability: Capability
    awaited: bool = False


class WorkerCatalogue(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of one worker."""

    worker: str
    tools: tuple[ServedTool, ...]


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tool: str = ""
    call_id: str = ""
    run_id: str = ""


class AttemptState(StrEnum):
    """State of an attempt at one worker."""

    RUNNING = "running"
    ENDED = "ended"
    """The job has ended; its answer follows while the worker still holds it."""
    UNKNOWN = "unknown"
    """The worker had the job and lost its outcome, or had a later attempt."""
    NOT_STARTED = "not-begun"
    """The worker has no start of the job in its memory and will not start it."""


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report on one attempt."""

    call: str
    attempt: int
    state: AttemptState
    id: str = ""
    """Id of the job while it runs."""


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's health and its report on attempts."""

    worker: str
    draining: bool = False
    running: tuple[RunningJob, ...] = ()
    calls: tuple[AttemptReport, ...] = ()
    """Reports on the attempts in the question."""
    remembers_ms: int = 0
    """How far back the worker remembers all its calls; a restarted worker remembers none."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report on an attempt, as a node receives it."""

    worker: str
    state: AttemptState | None = None
    """``None`` from a worker that does not support the question."""
    remembers_ms: int = 0


class WorkerReports(msgspec.Struct, frozen=True, kw_only=True):
    """The reports of a surface's workers on one attempt."""

    workers: tuple[WorkerReport, ...] = ()
    """Workers that replied."""
    answer: bytes | None = None
    """The attempt's ``JobAnswer``, if a worker still holds it."""
    answer_blob: str = ""
    """The blob in which the worker stored that, if it did."""
