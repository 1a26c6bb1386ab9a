"""A program's calls as turns and tools speak of them, and what a run is given to call.

Data only. Who may call what, and what comes of it, is for the concerns to say.
"""

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
    """Whether a program awaits it; calls awaited together go out together."""


class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is given. Nothing else of the node it started on has a say in how it goes."""

    language: Language
    build: str
    """Digest of the guest that runs it."""
    seed: str
    """Hex; all the chance a session sees comes from its first run's."""
    limits: SessionLimits
    """In force for the run."""
    session_limits: SessionLimits | UnsetType = UNSET
    """Those of its session then, if they are not the defaults."""
    tools: tuple[AvailableTool, ...] = ()
    catalogue: str = ""
    """Digest, in the blob store, of the JSON list of what the tools declared."""


class ForkPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A place in an old session's life that another session goes on from."""

    session: str
    generation: int
    run_id: str
    """The run that was going on there, or had ended last."""
    calls: int = 0
    """How many of its calls had been answered."""
    at_sequence: int
    """Where the last fact stands that was taken over."""


class ForkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that begins in the middle of another one: told first what that one was told."""

    of: ForkPoint
    begun_at_ms: int
    """When the other one began, which is when its program thinks that it began."""
    offer: RunEnvironment
    """What the other one was given: with anything else its program might not come to the fork."""
    batches: int
    """In how many batches its calls had been answered."""
    known_blob: str
    """Digest, in the blob store, of the JSON list of those batches, lists of calls themselves."""


class CallArguments(msgspec.Struct, frozen=True, kw_only=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class RequestedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a driver asked for it."""

    operation_id: str
    number: int
    """Counts from 1 in every run."""
    name: str
    digest: str
    """SHA3-256 of the canonical ``{"args", "kwargs"}``."""
    awaited: bool = False
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    """Digest of the arguments in the blob store, where they are too large to stand here."""


class ToolFault(msgspec.Struct, frozen=True):
    """A failure as the program sees it: an exception with this code."""

    code: str
    message: str


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a call: a value, here or in the blob store, or an error."""

    value: Any = None
    value_blob: str | UnsetType = UNSET
    error: ToolFault | UnsetType = UNSET
    duration_ms: int = 0


# --- between a driver and its actors, inside one node -----------------------------------------
