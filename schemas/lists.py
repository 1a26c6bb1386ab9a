"""What lists show: runs and tools as they stand, a page at a time.

Answers to queries over many entities; what one session or one run is asked for by name is in
``answers`` and ``commands``. How they are folded from facts is ``actors/projections``'.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.capability import Capability
from rookery.schemas.run import Language

__all__ = ["RunList", "RunState", "RunView", "RunWait", "ToolList", "ToolView"]


class RunState(StrEnum):
    """Where a run stands: on its way, waiting, or by which status it ended."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    INTERRUPTED = "interrupted"
    """It waits for what its code says. Not an end."""
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
    """What a run waits for just now."""

    what: str
    since_ms: int
    who: str
    """Who can end the waiting."""
    command: str
    """What they type."""
    operation_ids: tuple[str, ...] = ()
    """The calls it waits for, if it is calls."""
    may_act_until_ms: int | None = None
    """If it waits for an operator: until then the tool may still act, and ``resolve`` is refused
    unless it says ``now``."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands."""

    run_id: str
    session_id: str
    status: RunState
    code: str | None = None
    """Why it is not ``ok``, where there is a code for it."""
    language: Language
    created_at_ms: int
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    calls: int = 0
    """How many it has asked for."""
    waits_for: RunWait | None = None
    position: str
    """``<sequence>.<n>`` of the fact it began with: newer runs have higher ones."""


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``runs``: newest first."""

    runs: tuple[RunView, ...] = ()
    next: str | None = None
    """Where to go on (``before``), should the limit have cut the list."""


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as this node offers it."""

    surface: str
    """Whose tool it is: ``local`` for functions of the node."""
    awaited: bool
    schema_digest: str
    capability: Capability


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``tools``: by name."""

    tools: tuple[ToolView, ...] = ()
