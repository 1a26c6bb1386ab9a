"""What the tools concern keeps of a session: the calls of its run, and what is open of older ones.

Arguments are kept until a call has come to something, outcomes until another run begins to call: by
then nobody asks for them any more. Data only; what facts make of it is ``fold``'s.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType

from rookery.actors.messages import CallProgress
from rookery.actors.tools.call_slots import CallAttempt
from rookery.schemas.calls import CallArguments, CallOutcome
from rookery.schemas.capability import ApprovalPolicy

__all__ = ["RECOVERY_REQUIRED", "STATE_SCHEMA", "CallPhase", "SessionCalls", "ToolCall"]

STATE_SCHEMA = 1
RECOVERY_REQUIRED = "RECOVERY_REQUIRED"
WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"


class CallPhase(StrEnum):
    """How far a call has come."""

    REQUESTED = "requested"
    """It waits for a place, or for a look at its arguments."""
    WAITING_FOR_APPROVAL = "unapproved"
    """It waits for an approval, and may not be made without."""
    INTENDED = "intended"
    """The tool is called, or was."""
    RECOVERY_REQUIRED = "recovery_required"
    """An operator has to say what came of it."""
    ENDED = "ended"


_WAITS_FOR = {
    CallPhase.WAITING_FOR_APPROVAL: WAITING_FOR_APPROVAL,
    CallPhase.RECOVERY_REQUIRED: RECOVERY_REQUIRED,
}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a run."""

    operation_id: str
    run: str
    generation: int
    name: str
    phase: CallPhase
    number: int = 0
    surface: str = ""
    idempotent: bool = False
    schema_digest: str = ""
    request_digest: str = ""
    timeout_ms: int = 0
    traceparent: str | UnsetType = UNSET
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    approval: ApprovalPolicy | UnsetType = UNSET
    """The policy that wants an approval."""
    grant_id: str = ""
    """The grant it has consumed."""
    attempt: int = 0
    """Of the last intent; 0 if there was none."""
    node: str = ""
    """The node process of the last intent."""
    deadline_at_ms: int = 0
    unknown_until_ms: int | UnsetType = UNSET
    """Until when the tool may still act on an attempt whose outcome is not known, as the last
    ``recovery_required`` says; unset before the first one."""
    outcome: CallOutcome | UnsetType = UNSET

    @property
    def current_attempt(self) -> CallAttempt:
        """Of its present try."""
        return CallAttempt(self.operation_id, self.attempt)

    @property
    def next_attempt(self) -> CallAttempt:
        """Of the try that comes next."""
        return CallAttempt(self.operation_id, self.attempt + 1)

    @property
    def acts_until_ms(self) -> int:
        """Until when the tool may still act, of a call that waits for an operator. Facts and
        snapshots of older nodes do not say: the deadline of the last intent counts."""
        said = self.unknown_until_ms
        return self.deadline_at_ms if said is UNSET else said

    @property
    def progress(self) -> CallProgress:
        """What whoever waits for the call may know of it."""
        waits_for = _WAITS_FOR.get(self.phase, "")
        return CallProgress(
            operation_id=self.operation_id, outcome=self.outcome, waits_for=waits_for
        )


class SessionCalls(msgspec.Struct, frozen=True, kw_only=True):
    """One session's calls."""

    run: str = ""
    """The last run that called anything."""
    calls: Map[str, ToolCall] = Map()
    """By operation: all of that run, and those of earlier ones that have no outcome yet."""

    def calls_of_run(self, run: str) -> list[ToolCall]:
        """In the order in which they were asked for."""
        found = [call for call in self.calls.values() if call.run == run]
        return sorted(found, key=lambda call: call.number)
