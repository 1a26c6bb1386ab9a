"""What follows from the facts of calls, and what whoever performs it puts back to the actor.

Data only: performing is ``acting``'s, what comes of what is put back is ``ledger``'s.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.decider import Effect
from rookery.actors.tools.state import ToolCall
from rookery.schemas.calls import CallOutcome, CallProgress, ToolFault

__all__ = [
    "AskApproval",
    "AttemptLost",
    "BeginCall",
    "CancelApproval",
    "ExecuteCall",
    "IntentStatus",
    "NotifyCall",
    "PrepareCall",
    "RecordOutcome",
]


class PrepareCall(Effect, frozen=True, kw_only=True):
    """Have the call's arguments looked at, where they stand in the blob store, wait for a place
    and ask for the intent."""

    session: str
    call: ToolCall


class AskApproval(Effect, frozen=True, kw_only=True):
    """Tell approvals of a call that waits for one, with its arguments as they would be made."""

    session: str
    call: ToolCall


class CancelApproval(Effect, frozen=True, kw_only=True):
    """Tell approvals that nobody wants the call any more."""

    session: str
    operation_id: str


class ExecuteCall(Effect, frozen=True, kw_only=True):
    """Call the tool, if the intent is this process's; else find out what to do about it."""

    session: str
    call: ToolCall


class NotifyCall(Effect, frozen=True, kw_only=True):
    """Tell whoever waits for the call how it stands."""

    progress: CallProgress


# --- what is put to the actor -----------------------------------------------------------------


class BeginCall(msgspec.Struct, frozen=True, kw_only=True):
    """There is a place for the call; or its arguments turned out not to be what they should."""

    operation_id: str
    fault: ToolFault | UnsetType = UNSET


class AttemptLost(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody can say what came of this try."""

    operation_id: str
    attempt: int
    reason: str = ""
    """Why not, as the process says that recorded the intent; empty if it is not there to say."""
    not_awaited: bool = False
    """The run has ended or is to, or its program gave the call up: if it may be tried again, it
    need not be."""
    gone: bool = False
    """The process that recorded the intent is known to have ended."""
    worker_report: str = ""
    """What the workers of the tool said when they were asked after the call."""


class RecordOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The tool has answered, or failed, or its time was up."""

    operation_id: str
    attempt: int
    outcome: CallOutcome
    response_digest: str = ""
    by_worker: bool = False
    """A worker was asked after the try, maybe by another process than the one that made it."""


class IntentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to all of these: whose intent of which try stands."""

    attempt: int = 0
    node: str = ""
