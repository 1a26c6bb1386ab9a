"""Facts of the family ``tool``: the concern ``tools`` is their only writer.

A call is ``requested``, then ``intended``, then it has exactly one outcome: ``completed``,
``failed``, or, where nobody can know whether it took place, ``recovery_required`` until an operator
says. One that wants an approval is ``allowed`` before it is intended. One that was turned away
before anything could happen is ``refused`` and has no other fact, unless its arguments stood in the
blob store and were looked at after it was ``requested``.
``run`` of the envelope is the call's run.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from rookery.schemas.calls import CallArguments, ToolFault
from rookery.schemas.capability import ApprovalPolicy
from rookery.schemas.envelope import Fact, HistoryRestart
from rookery.schemas.integers import Unsigned
from rookery.schemas.run import CallStatus, SideEffect

__all__ = ["TOOL_FACTS", "CallFact", "ToolFact"]


class _ToolCallFact(Fact, frozen=True, kw_only=True):
    run: str
    operation_id: str


class Refused(_ToolCallFact, frozen=True, kw_only=True, tag="tool.refused.v1"):
    """The call was turned away; nothing was executed."""

    name: str
    number: Unsigned
    """Counts the run's calls from 1."""
    request_digest: str
    error: ToolFault
    status: CallStatus = CallStatus.ERROR


class Requested(_ToolCallFact, frozen=True, kw_only=True, tag="tool.requested.v1"):
    """The call is a good one: the tool is there and takes these arguments."""

    name: str
    surface: str
    """Whose tool it is: ``local`` for functions of the node, else a worker's name."""
    number: Unsigned
    side_effect: SideEffect
    idempotent: bool
    idempotency_key: str
    """The same however often the call is tried."""
    schema_digest: str
    request_digest: str
    timeout_ms: Unsigned
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    waits: bool = False
    """For a place, or for a look at its arguments; else its intent stands beside it."""
    approval: ApprovalPolicy | UnsetType = UNSET
    """Set if the call waits for an approval first: which policy wants it."""


class Allowed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.allowed.v1"):
    """The call that waited for an approval may be made, on a grant it has consumed."""

    grant_id: str


class IntentRecorded(_ToolCallFact, frozen=True, kw_only=True, tag="tool.intent_recorded.v1"):
    """The tool is about to be called: from here on it may have been."""

    attempt: Unsigned
    """Counts from 1."""
    node: str
    """Which process of which node calls it."""
    deadline_at_ms: Unsigned
    grant_id: str = ""
    """The grant of a call that wanted an approval."""


class Completed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.completed.v1"):
    """The tool has answered."""

    value: Any = None
    value_blob: str | UnsetType = UNSET
    """Digest of the value in the blob store, where it is too large to stand here."""
    response_digest: str
    duration_ms: Unsigned
    resolved_by: str = ""
    """The operator who said so, or their command: ``RECOVERY_REQUIRED`` before."""


class Failed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.failed.v1"):
    """The tool has failed, or its time was up."""

    error: ToolFault
    status: CallStatus
    duration_ms: Unsigned
    resolved_by: str = ""


class RecoveryRequired(_ToolCallFact, frozen=True, kw_only=True, tag="tool.recovery_required.v1"):
    """Nobody knows whether the tool has acted, and it may not be called twice unseen."""

    reason: str
    may_act_until_ms: Unsigned | UnsetType = UNSET
    """Until then the tool may still act on an attempt that was made, in milliseconds since 1970;
    unset by older nodes, which means the deadline of the last intent."""


class RetryAllowed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.retry_allowed.v1"):
    """An operator wants the call tried again, whatever the last attempt did."""

    resolved_by: str


class Withdrawn(_ToolCallFact, frozen=True, kw_only=True, tag="tool.withdrawn.v1"):
    """The run ended, or its program gave the call up, before the tool was called."""

    given_up: bool | UnsetType = UNSET
    """Set if the program goes on without it."""


class HistoryRestarted(HistoryRestart, frozen=True, kw_only=True, tag="tool.history_restarted.v1"):
    """No call from before counts, whatever came of it."""


CallFact = (
    Refused
    | Requested
    | Allowed
    | IntentRecorded
    | Completed
    | Failed
    | RecoveryRequired
    | RetryAllowed
    | Withdrawn
)
ToolFact = CallFact | HistoryRestarted
TOOL_FACTS = ToolFact
