"""What may be asked: the body of every verb. Unknown fields are refused.

``run`` takes a ``RunRequest``. Every handle method of a machine is a ``HandleInput`` under its
concern's verb (``admission``).
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.schemas.run import RunRequest, SessionMeta

__all__ = ["COMMANDS", "Cancel", "HandleInput", "RunReceipt", "SessionQuery", "SessionView"]


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
    """A session as it stands at ``sequence``."""

    meta: SessionMeta
    phase: str
    generation: int
    sequence: int = 0
    current_run_id: str | None = None
    queue: tuple[RunReceipt, ...] = ()


COMMANDS: dict[str, type[msgspec.Struct]] = {
    "run": RunRequest,
    "cancel": Cancel,
    "admission": HandleInput,
    "session": SessionQuery,
}
