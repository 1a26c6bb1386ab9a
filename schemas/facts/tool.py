"""Facts of the family ``tool``: the calls of runs, written by the decider of turns.

They are committed together with the facts of the turn, in messages of the entity ``turn``. Messages
of the entity ``tool`` are older: their calls are ``adopted`` before anything else happens to them.

A call is ``requested``, then ``intended``, and has exactly one outcome: ``completed``, ``failed``,
or, if its outcome is unknown, ``recovery_required`` until an operator resolves it. A call that
needs an approval is ``allowed`` before it is intended. A call that ends later without an attempt,
such as a sleep, is ``awaited`` instead of intended; one that goes on as a task of its surface is
``awaited`` afterwards. A rejected call is ``refused`` and has no
other fact, unless its arguments were in the blob store and were checked after it was ``requested``.
``run`` of the envelope is the call's run.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from rookery.schemas.agents import ModelBudget, ModelUsage
from rookery.schemas.calls import ApprovalPolicy, ApprovalTerms, CallArguments, ToolFault
from rookery.schemas.envelope import Fact, HistoryRestart
from rookery.schemas.run import CallStatus, SideEffect
from rookery.schemas.scalars import Unsigned
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, PolicyOutcome, RiskClass

__all__ = ["TOOL_FACTS", "CallFact", "ToolFact"]


class _ToolCallFact(Fact, frozen=True, kw_only=True):
    run: str
    operation_id: str


class Refused(_ToolCallFact, frozen=True, kw_only=True, tag="tool.refused.v1"):
    """The call was rejected; nothing was executed."""

    name: str
    number: Unsigned
    """Number of the call in its run, from 1."""
    request_digest: str
    error: ToolFault
    status: CallStatus = CallStatus.ERROR
    policy: PolicyOutcome | UnsetType = UNSET
    """What the policy has decided, if it denies the call."""
    parent: str | UnsetType = UNSET
    """The call of ``run_code`` whose program wants it; its number counts in that program."""


class Requested(_ToolCallFact, frozen=True, kw_only=True, tag="tool.requested.v1"):
    """The call is valid: the tool exists and accepts these arguments."""

    name: str
    surface: str
    """Who serves the tool: ``local`` for functions of the node, else a worker's name."""
    number: Unsigned
    side_effect: SideEffect
    idempotent: bool
    idempotency_key: str
    """The same for every attempt of the call."""
    schema_digest: str
    request_digest: str
    """Of the arguments that the program wrote."""
    executed_digest: str | UnsetType = UNSET
    """Of ``arguments``, if hooks have changed them."""
    changed_by: str | UnsetType = UNSET
    """Which hooks have changed the call, for approvers."""
    timeout_ms: Unsigned
    arguments: CallArguments | UnsetType = UNSET
    """What is executed."""
    arguments_blob: str | UnsetType = UNSET
    waits: bool = False
    """The call waits for a slot or for a check of its arguments; otherwise its intent is in the
    same commit, or ``awaited``."""
    approval: ApprovalPolicy | UnsetType = UNSET
    """The policy that requires an approval of the call, if any."""
    terms: ApprovalTerms | UnsetType = UNSET
    """What hooks made stricter of that approval."""
    may_retry: bool | UnsetType = UNSET
    """Set if a hook may ask for one more attempt after an outcome."""
    risk: RiskClass | UnsetType = UNSET
    """Of a call that needs an approval; unset: by the side effect."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    """Of an approver; unset: all."""
    policy: PolicyOutcome | UnsetType = UNSET
    """What the run's policy has decided, if it asks for the approval."""
    parent: str | UnsetType = UNSET
    """The call of ``run_code`` whose program wants it; its number counts in that program."""


class Awaited(_ToolCallFact, frozen=True, kw_only=True, tag="tool.awaited.v1"):
    """The call ends later, by an event: nothing of it runs here until then."""

    code: str
    """What the call waits for: ``WAITING_FOR_TIMER`` ..."""
    until_ms: Unsigned | UnsetType = UNSET
    """When the wait ends at the latest, in milliseconds since 1970."""
    lease: str | UnsetType = UNSET
    """The key of the lease whose credential the call needs."""
    task: str | UnsetType = UNSET
    """The id by which the surface knows the call, which has begun and goes on there."""
    peer: str | UnsetType = UNSET
    """The address of the peer whose envelope it waits for; unset if any may send it."""
    intent: str | UnsetType = UNSET
    """Of the request that it waits for, or for whose response."""
    child: str | UnsetType = UNSET
    """The session in which an agent runs that the call waits for."""
    reserved: ModelBudget | UnsetType = UNSET
    """What that run may use of the budget of this one."""


class CredentialReady(_ToolCallFact, frozen=True, kw_only=True, tag="tool.credential_ready.v1"):
    """The credential that the call needs is fresh; the call may be made."""


class Adopted(_ToolCallFact, frozen=True, kw_only=True, tag="tool.adopted.v1"):
    """An open call of the older entity ``tool`` continues in the entity of its turn.

    The fields are those of the call's earlier facts.
    """

    name: str
    phase: str
    """``requested``, ``unapproved``, ``intended`` or ``recovery_required``."""
    number: Unsigned
    surface: str
    idempotent: bool
    schema_digest: str
    request_digest: str
    timeout_ms: Unsigned
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    approval: ApprovalPolicy | UnsetType = UNSET
    grant_id: str = ""
    attempt: Unsigned = 0
    node: str = ""
    deadline_at_ms: Unsigned = 0
    may_act_until_ms: Unsigned | UnsetType = UNSET


class Allowed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.allowed.v1"):
    """An approval's grant was consumed; the call may be made."""

    grant_id: str


class IntentRecorded(_ToolCallFact, frozen=True, kw_only=True, tag="tool.intent_recorded.v1"):
    """The tool is about to be called: from here on it may have acted."""

    attempt: Unsigned
    """Number of the attempt, from 1."""
    node: str
    """Node and process that make the call."""
    deadline_at_ms: Unsigned
    grant_id: str = ""
    """The grant of a call that needed an approval."""


class Completed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.completed.v1"):
    """The tool returned a value."""

    value: Any = None
    value_blob: str | UnsetType = UNSET
    """Digest of the value in the blob store, if it is too large for a fact."""
    sealed: bool | UnsetType = UNSET
    """Whether the value is sensitive, and so a ``SealedValue`` here."""
    response_digest: str
    duration_ms: Unsigned
    resolved_by: str = ""
    """The operator, or the id of their command, that resolved a call in ``RECOVERY_REQUIRED``."""
    usage: ModelUsage | UnsetType = UNSET
    """Of the run of an agent that has given the value."""


class Failed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.failed.v1"):
    """The tool failed, or exceeded its time."""

    error: ToolFault
    status: CallStatus
    duration_ms: Unsigned
    resolved_by: str = ""
    usage: ModelUsage | UnsetType = UNSET
    """Of the run of an agent that has failed."""


class RecoveryRequired(_ToolCallFact, frozen=True, kw_only=True, tag="tool.recovery_required.v1"):
    """It is unknown whether the tool has acted, so the call is not repeated without an operator."""

    reason: str
    may_act_until_ms: Unsigned | UnsetType = UNSET
    """Until when the tool may still act on an earlier attempt, in milliseconds since 1970. Older
    nodes leave it unset; then the deadline of the last intent applies."""


class RetryAllowed(_ToolCallFact, frozen=True, kw_only=True, tag="tool.retry_allowed.v1"):
    """An operator requests another attempt, whatever the last one did; or a hook does, and the
    outcome before this is not that of the call."""

    resolved_by: str
    by_hook: bool | UnsetType = UNSET
    """Set if a hook has requested it; ``resolved_by`` is its id."""


class Withdrawn(_ToolCallFact, frozen=True, kw_only=True, tag="tool.withdrawn.v1"):
    """The run ended, or its program cancelled the call, before the tool was called."""

    given_up: bool | UnsetType = UNSET
    """Set if the program continues without the call."""


class HistoryRestarted(HistoryRestart, frozen=True, kw_only=True, tag="tool.history_restarted.v1"):
    """All earlier calls of the older entity ``tool`` are void, with their outcomes."""


CallFact = (
    Refused
    | Requested
    | Awaited
    | CredentialReady
    | Adopted
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
