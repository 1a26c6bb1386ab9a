"""The calls of a session: those of its run, and the open ones of earlier runs. Data only.

Arguments stay until a call has an outcome, outcomes until another run begins to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.messages import CallProgress
from rookery.actors.tools.attempts.call_slots import CallAttempt
from rookery.schemas.agents import RUN_CODE, ModelBudget
from rookery.schemas.calls import (
    CODE_SURFACE,
    LEASE_WAITS,
    RECOVERY_REQUIRED,
    WAITING_FOR_APPROVAL,
    ApprovalMode,
    ApprovalPolicy,
    ApprovalTerms,
    CallArguments,
    CallOutcome,
    Capability,
    RequestedCall,
    ToolFault,
)
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, RiskClass

__all__ = [
    "NO_VERDICT",
    "NO_VERDICTS",
    "CallPhase",
    "HookVerdict",
    "SessionCalls",
    "ToolCall",
]

_ATTEMPT_WAITS = ("", WAITING_FOR_APPROVAL, RECOVERY_REQUIRED, *LEASE_WAITS)
"""The waits of calls that have attempts."""
UNAPPROVED = "unapproved"
"""The phase of a call that awaits an approval, as ``tool.adopted`` names it."""


class CallPhase(StrEnum):
    """The phase of a call."""

    REQUESTED = "requested"
    """Waits for a slot or for a check of its arguments."""
    AWAITED = "awaited"
    """Waits for an event that may take long; ``waits_for`` names it. It holds no slot."""
    INTENDED = "intended"
    """The tool was or is being called."""
    RECOVERY_REQUIRED = "recovery_required"
    """Waits for an operator to resolve it."""
    ENDED = "ended"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a run."""

    operation_id: str
    run: str
    generation: int
    name: str
    phase: CallPhase
    number: int = 0
    ordinal: int = 0
    """Its number in the session; 0 before the session has counted it."""
    surface: str = ""
    idempotent: bool = False
    schema_digest: str = ""
    request_digest: str = ""
    """Of the arguments that the program wrote."""
    executed_digest: str = ""
    """Of those that are executed, if a hook has changed them."""
    changed_by: str = ""
    """Which hooks have changed it, for approvers."""
    terms: ApprovalTerms | UnsetType = UNSET
    """What hooks made stricter of its approval."""
    may_retry: bool = False
    """Whether a hook may ask for one more attempt after an outcome; its arguments stay for that."""
    timeout_ms: int = 0
    traceparent: str | UnsetType = UNSET
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    approval: ApprovalPolicy | UnsetType = UNSET
    """The policy that requires an approval."""
    risk: RiskClass | UnsetType = UNSET
    """As the approval's request says it; unset: by the side effect."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    """Of its approver; unset: all."""
    grant_id: str = ""
    """The consumed grant."""
    waits_for: str = ""
    """The code of what the call waits or waited for; empty if it runs or waits for a slot."""
    until_ms: int = 0
    """When a timer ends the wait; 0 without a timer."""
    lease: str = ""
    """The lease whose credential the call waits or waited for."""
    task: str = ""
    """The id by which its surface knows the call that goes on there."""
    task_until_ms: int = 0
    """When that task ends at the latest; 0: with the deadline of the last intent."""
    credential_ready: bool = False
    """Whether the call has waited for its credential; it does so once."""
    attempt: int = 0
    """The attempt of the last intent; 0 before the first."""
    node: str = ""
    """The process of the last intent."""
    deadline_at_ms: int = 0
    unknown_until_ms: int | UnsetType = UNSET
    """Until when the tool may still act on an attempt with an unknown outcome, from the last
    ``recovery_required``; unset before the first one."""
    outcome: CallOutcome | UnsetType = UNSET
    parent: str = ""
    """The call of ``run_code`` whose program wants it."""
    reserved: ModelBudget | UnsetType = UNSET
    """What the agent that it calls may use; set once its run is on record."""

    @property
    def is_code(self) -> bool:
        """Whether its driver executes it as a program: nothing begins it."""
        return self.surface == CODE_SURFACE and self.name == RUN_CODE

    @property
    def approved_digest(self) -> str:
        """Of what an approval of the call is bound to: what is executed."""
        return self.executed_digest or self.request_digest

    @property
    def current_attempt(self) -> CallAttempt:
        return CallAttempt(self.operation_id, self.attempt)

    @property
    def next_attempt(self) -> CallAttempt:
        return CallAttempt(self.operation_id, self.attempt + 1)

    @property
    def acts_until_ms(self) -> int:
        """Until when the tool may still act on a call that waits for an operator. Facts and
        snapshots of older nodes lack it: the deadline of the last intent applies."""
        until_ms = self.unknown_until_ms
        return self.deadline_at_ms if until_ms is UNSET else until_ms

    @property
    def progress(self) -> CallProgress:
        """The progress of the call for its driver."""
        return CallProgress(
            operation_id=self.operation_id,
            outcome=self.outcome,
            waits_for="" if self.phase is CallPhase.ENDED else self.waits_for,
            by_event=UNSET if self.waits_for in _ATTEMPT_WAITS else True,
            may_retry=self.may_retry or UNSET,
        )

    @property
    def reached(self) -> str:
        """The state of the call, as receipts name it."""
        if self.outcome is UNSET:
            return self.phase.value
        return "completed" if self.outcome.error is UNSET else "failed"

    def is_awaited(self, *codes: str) -> bool:
        """Whether the call waits for one of these events."""
        return self.phase is CallPhase.AWAITED and self.waits_for in codes


class SessionCalls(msgspec.Struct, frozen=True, kw_only=True):
    """One session's calls."""

    run: str = ""
    """The last run that called a tool."""
    calls: Map[str, ToolCall] = Map()
    """By operation: all calls of that run, and open calls of earlier ones."""
    adopted: frozenset[str] = frozenset()
    """The operations that began in the older entity."""
    requested: int = 0
    """How many calls the session has requested, in all its generations."""

    def with_older(self, older: SessionCalls) -> SessionCalls:
        """These calls, and those of the older entity that have not been adopted."""
        calls = self.calls
        for operation_id, call in older.calls.items():
            if operation_id not in self.adopted:
                calls = calls.set(operation_id, call)
        return replace(self, run=self.run or older.run, calls=calls)

    def calls_of_run(self, run: str) -> list[ToolCall]:
        """In the order of their requests."""
        found = [call for call in self.calls.values() if call.run == run]
        return sorted(found, key=lambda call: call.number)


# --- hooks ----------------------------------------------------------------------------------------


class HookVerdict(NamedTuple):
    """What the hooks of a call have decided before its request."""

    fault: ToolFault | UnsetType = UNSET
    """Why it is refused."""
    arguments: CallArguments | UnsetType = UNSET
    """What is executed instead of the program's arguments."""
    executed_digest: str = ""
    needs_approval: bool = False
    changed_by: str = ""
    terms: ApprovalTerms | UnsetType = UNSET
    """What an approver is to be asked more strictly."""

    def applied(self, requested: RequestedCall) -> RequestedCall:
        """The call as it is executed, with the digest of what the program wrote."""
        if self.arguments is UNSET:
            return requested
        return replace(requested, arguments=self.arguments, arguments_blob=UNSET)

    def policy(self, capability: Capability) -> ApprovalPolicy | UnsetType:
        """The approval that the call needs, if any: never less than its tool says."""
        policy = capability.approval_policy
        if self.needs_approval and policy is not ApprovalMode.MANUAL_ANY_ARGUMENTS:
            return ApprovalMode.MANUAL
        return UNSET if policy is ApprovalMode.NONE else policy


NO_VERDICT: Final = HookVerdict()
NO_VERDICTS: Final[Mapping[str, HookVerdict]] = MappingProxyType({})
