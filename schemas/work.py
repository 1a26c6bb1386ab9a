"""Calls of tools that workers serve: what nodes and workers say to each other.

The bodies are JSON on the wire, for workers in any language; the rest travels in headers, as
``bus/jobs.py`` says. Unknown fields are ignored, so either side may be the newer one. Who is
called, and what follows from no answer, is not said here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import ToolFault
from rookery.schemas.capability import Capability

__all__ = [
    "GRACE_MS",
    "Answered",
    "Catalogue",
    "Health",
    "Job",
    "JobAnswer",
    "JobEnd",
    "JobUnknown",
    "NotBegun",
    "RunningJob",
    "ServedTool",
]

GRACE_MS: Final = 1_000
"""A worker keeps the time of a job; its last word may take so long to arrive."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One try of one call."""

    surface: str
    tool: str
    """As the worker calls it."""
    body: bytes
    """``Arguments`` as JSON."""
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


class Answered(msgspec.Struct, frozen=True):
    """A worker has answered, with a ``JobAnswer``."""

    body: bytes


class NotBegun(msgspec.Struct, frozen=True):
    """Nobody has begun, and nobody will: to ask again is safe."""

    reason: str
    nobody: bool = False
    """No worker serves the tool; else those asked had no room, or are about to leave."""


class JobUnknown(msgspec.Struct, frozen=True):
    """Nobody can say whether the tool has acted."""

    reason: str


JobEnd = Answered | NotBegun | JobUnknown


class ServedTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its worker declares it."""

    capability: Capability
    awaited: bool = False


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker serves."""

    worker: str
    tools: tuple[ServedTool, ...]


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tool: str = ""
    call_id: str = ""
    run_id: str = ""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is doing."""

    worker: str
    draining: bool = False
    running: tuple[RunningJob, ...] = ()
