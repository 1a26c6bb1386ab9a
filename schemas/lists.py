"""Lists of runs and tools, a page at a time: replies to queries over many entities.

``actors/projections`` folds them from facts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.capability import Capability
from rookery.schemas.machines.lease import AuthLeasePhase, AuthStatusPhase
from rookery.schemas.run import Language

__all__ = [
    "LeaseList",
    "ListedLease",
    "RunList",
    "RunState",
    "RunView",
    "RunWait",
    "ToolList",
    "ToolView",
]


class RunState(StrEnum):
    """State of a run: in progress, waiting, or ended with a status."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    INTERRUPTED = "interrupted"
    """The run waits for the reason in its code; it has not ended."""
    OK = "ok"
    VALIDATION_ERROR = "validation_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PERMISSION_DENIED = "permission_denied"

    @property
    def is_end(self) -> bool:
        return self not in _UNFINISHED


_UNFINISHED: Final = (
    RunState.QUEUED,
    RunState.RUNNING,
    RunState.WAITING_FOR_APPROVAL,
    RunState.INTERRUPTED,
)


class RunWait(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for at present."""

    what: str
    since_ms: int
    who: str
    """The party that can end the wait."""
    command: str
    """The command that ends the wait."""
    operation_ids: tuple[str, ...] = ()
    """The calls the run waits for, if any."""
    may_act_until_ms: int | None = None
    """If the run waits for an operator: until then the tool may still act, and ``resolve`` requires
    ``now``."""
    until_ms: int | None = None
    """When a timer ends the wait, if one does."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run's present state."""

    run_id: str
    session_id: str
    status: RunState
    code: str | None = None
    """Code of the reason if the state is not ``ok`` and there is one."""
    language: Language
    created_at_ms: int
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    calls: int = 0
    """Number of calls the run has requested."""
    by: str | None = None
    """The credential that sent it, or ``unsigned``."""
    waits_for: RunWait | None = None
    position: str
    """``<sequence>.<n>`` of the run's first fact; newer runs have higher positions."""


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``runs``: newest first."""

    runs: tuple[RunView, ...] = ()
    next: str | None = None
    """Position of the next page (``before``), if the limit cut the list."""


class ListedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of the realm; its credential is in no list."""

    lease: str
    phase: AuthLeasePhase | None
    """``None`` if it was released, or has never had a credential."""
    status: AuthStatusPhase
    login_required: bool
    expires_at: int | None
    """Unix seconds; ``None`` never expires."""
    generation: int
    published_at_ms: int | None
    waiting_calls: int
    logins: int
    """Logins in progress."""
    reason: str = ""
    """Why there is no newer credential."""
    retry_at_ms: int | None = None
    """When the next attempt begins."""


class LeaseList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``leased``: by key."""

    leases: tuple[ListedLease, ...] = ()


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that this node offers."""

    surface: str
    """Who serves the tool: ``local`` for functions of the node, else a worker's name."""
    awaited: bool
    waits_for: str = ""
    """What its calls wait for, if they end by an event; they have no time limit then."""
    schema_digest: str
    capability: Capability


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``tools``: by name."""

    tools: tuple[ToolView, ...] = ()
