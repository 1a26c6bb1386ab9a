"""What may be asked: the body of every verb. Unknown fields are refused.

``run`` takes a ``RunRequest``. Every handle method of a machine is a ``HandleInput`` under its
concern's verb; of one that only looks, no fact is left.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.schemas.answers import (
    ApprovalsAnswer,
    LeaseView,
    PeersAnswer,
    SurfacesAnswer,
    TurnsAnswer,
)
from rookery.schemas.run import RunRequest, SessionMeta

__all__ = [
    "ANSWERS",
    "COMMANDS",
    "Cancel",
    "HandleInput",
    "RunReceipt",
    "SessionList",
    "SessionQuery",
    "SessionView",
    "SessionsQuery",
]


class HandleInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of a machine, by the names of ``machines.md``."""

    input: str
    params: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Withdraw an input that has not started, or ask the current run to end at its boundary."""

    run_id: str
    reason: str = ""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask what a session is; leaves no fact."""


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the realm's sessions (verb ``sessions``, any key); leaves no fact."""

    phase: str | None = None
    limit: int = 1_000


class RunReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How far an input has come: the answer to ``run`` until a turn answers with its result."""

    run_id: str
    input_id: str
    session_id: str
    state: str
    """``queued``, ``prepared``, ``committed``, ``failed``, ``rolled_back``, ``cancelled`` or
    ``refused``; the last five are terminal."""
    error: Any = None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it stands."""

    meta: SessionMeta
    phase: str
    generation: int
    current_run_id: str | None = None
    queue: tuple[RunReceipt, ...] = ()


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``sessions``."""

    sessions: tuple[SessionView, ...] = ()
    total: int = 0
    """How many there are, should the limit have cut the list."""


COMMANDS: dict[str, type[msgspec.Struct]] = {
    "run": RunRequest,
    "cancel": Cancel,
    "admission": HandleInput,
    "turns": HandleInput,
    "surfaces": HandleInput,
    "leases": HandleInput,
    "peers": HandleInput,
    "approvals": HandleInput,
    "session": SessionQuery,
    "sessions": SessionsQuery,
}

ANSWERS: dict[str, Any] = {
    "run": RunReceipt,
    "cancel": RunReceipt,
    "admission": SessionView,
    "turns": TurnsAnswer,
    "surfaces": SurfacesAnswer,
    "leases": LeaseView,
    "peers": PeersAnswer,
    "approvals": ApprovalsAnswer,
    "session": SessionView,
    "sessions": SessionList,
}
"""What a verb answers where it is not refused: a struct, or a union of them."""
