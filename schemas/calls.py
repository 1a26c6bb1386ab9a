"""A program's calls as turns and tools exchange them, and the environment of a run."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.run import Language, SessionLimits, SideEffect

__all__ = [
    "AvailableTool",
    "CallArguments",
    "CallOutcome",
    "ForkPoint",
    "ForkedRun",
    "RequestedCall",
    "RunEnvironment",
    "ToolFault",
]


class AvailableTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a program sees it."""

    name: str
    schema_digest: str = ""
    side_effect: SideEffect = SideEffect.NONE
    awaited: bool = False
    """Whether programs await the tool; calls awaited together are made together."""
    hidden: bool | UnsetType = UNSET
    """Whether the run has no right to any call of it, so that ``list_tools()`` leaves it out."""


class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of its node that a run depends on."""

    language: Language
    build: str
    """Digest of the guest that executes the run."""
    seed: str
    """Hex; a session takes all its randomness from its first run's seed."""
    limits: SessionLimits
    """Limits of the run."""
    session_limits: SessionLimits | UnsetType = UNSET
    """The session's limits when the run started, unless they are the defaults."""
    tools: tuple[AvailableTool, ...] = ()
    catalogue: str = ""
    """Digest of the JSON list of declared tools, in the blob store."""


class ForkPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The point in an old session at which a fork continues."""

    session: str
    generation: int
    run_id: str
    """The run in progress at that point, or the last one before it."""
    calls: int = 0
    """Number of its calls that had an outcome."""
    at_sequence: int
    """Sequence of the last fact the fork takes over."""
    at_fact: int = 0
    """Its number in the message; 0 in facts of older versions, which took whole messages over."""


class ForkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that continues another run: first it replays the outcomes of that one's calls."""

    of: ForkPoint
    begun_at_ms: int
    """Start of the other run, which is the start that this run's program sees."""
    offer: RunEnvironment
    """Environment of the other run; in a different one the program might not reach the fork."""
    batches: int
    """Number of batches in which the other run's calls got their outcomes."""
    known_blob: str
    """Digest of the JSON list of those batches (lists of calls) in the blob store."""
    waits: dict[int, int] | UnsetType = UNSET
    """By the number of a call, until when (in milliseconds since 1970) it waited in the other
    run."""


class CallArguments(msgspec.Struct, frozen=True, kw_only=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class RequestedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a driver requested."""

    operation_id: str
    number: int
    """Number of the call in its run, from 1."""
    name: str
    digest: str
    """SHA3-256 of the canonical ``{"args", "kwargs"}``."""
    awaited: bool = False
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    """Digest of the arguments in the blob store, if they are too large for a fact."""


class ToolFault(msgspec.Struct, frozen=True):
    """A failure as the program sees it: an exception with this code."""

    code: str
    message: str


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call: a value, here or in the blob store, or an error."""

    value: Any = None
    value_blob: str | UnsetType = UNSET
    error: ToolFault | UnsetType = UNSET
    duration_ms: int = 0
    sealed: bool | UnsetType = UNSET
    """Whether the value is sensitive, and so stands here as a ``SealedValue``."""
