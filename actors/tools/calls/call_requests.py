"""A call when a program requests it: what the policy of its run answers, and its first facts. Pure.

The policy refuses a call, or lets an approver decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from msgspec import UNSET, UnsetType

from rookery.actors.policy import RunPolicy
from rookery.actors.tools.builtin.peers import peer_address
from rookery.actors.tools.calls.wait_rules import call_fields
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, NumberedCall
from rookery.actors.tools.state import CallPhase, HookVerdict, ToolCall
from rookery.actors.tools.validation.capability_checks import fault, status_of
from rookery.schemas.calls import (
    CODE_SURFACE,
    WAITING_FOR_PEER,
    ApprovalPolicy,
    RequestedCall,
    ToolFault,
)
from rookery.schemas.facts import code, turn
from rookery.schemas.facts import tool as facts
from rookery.schemas.protection.policy import ALL_DECISIONS, PolicySettings, RuleDecision, risk_of
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, PolicyOutcome, RiskClass

__all__ = [
    "HOST_DEFAULT",
    "CallBatch",
    "PeerGate",
    "PolicyAnswer",
    "PolicyByDigest",
    "RequestPolicy",
    "RequestTerms",
    "ask_policy",
    "cancelled_call",
    "every_peer_open",
    "host_default",
    "new_call",
    "peer_verdict",
    "recovery_required",
    "refused_call",
    "refused_request",
    "request_terms",
    "requested_code",
    "requested_fact",
]

HOST_DEFAULT: Final = RunPolicy(PolicySettings())
PolicyByDigest = Callable[[str | UnsetType], RunPolicy]
"""The policy of a run, by the digest in its environment."""


def host_default(_: str | UnsetType) -> RunPolicy:
    """Where no policy is configured, all runs have the default one."""
    return HOST_DEFAULT


PeerGate: TypeAlias = Callable[[str], bool]
"""Whether sending to an address waits for an approver, as this node knows."""


def every_peer_open(_: str) -> bool:
    """Of a node whose programs have no tools for peers."""
    return False


def peer_verdict(
    tool: CatalogueTool, requested: RequestedCall, verdict: HookVerdict, gate: PeerGate
) -> HookVerdict:
    """The verdict on a valid call; what is sent to another realm may need an approval."""
    if tool.waits_for != WAITING_FOR_PEER or requested.arguments is UNSET:
        return verdict
    address = peer_address(requested.name, requested.arguments)
    return verdict._replace(needs_approval=True) if address and gate(address) else verdict


CallBatch = turn.ToolCallsReturned | code.Stepped
"""The fact of a step that requests calls."""


class PolicyAnswer(NamedTuple):
    """What is to become of a call."""

    outcome: PolicyOutcome | UnsetType = UNSET
    """Of a policy that denies the call, or asks for its approval."""
    fault: ToolFault | UnsetType = UNSET
    """Why the call is refused."""

    @property
    def asks(self) -> bool:
        return self.outcome is not UNSET and self.fault is UNSET


ALLOWED: Final = PolicyAnswer()


class RequestTerms(NamedTuple):
    """How the approval of a call is requested, if it needs one."""

    approval: ApprovalPolicy | UnsetType
    risk: RiskClass | UnsetType = UNSET
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    may_retry: bool = False
    """Whether a hook may ask for one more attempt: if that needs no other approval."""


def ask_policy(policy: RunPolicy, tool: CatalogueTool, call: NumberedCall) -> PolicyAnswer:
    """The policy's answer about a valid call."""
    if not policy.digest or tool.only_waits:  # The default allows.
        return ALLOWED
    step = policy.judge(tool.subject, tool.visible_arguments(call)).decisive
    if step is None:
        return ALLOWED
    if step.decision is RuleDecision.ASK:
        return PolicyAnswer(step.outcome)
    wrong = fault("PERMISSION_DENIED", f"the policy denies this call: {step.text} ({step.code})")
    return PolicyAnswer(step.outcome, wrong)


class RequestPolicy(NamedTuple):
    """Who decides about the requests of a node's runs: their policies, and the gate of peers."""

    policy_of: PolicyByDigest = host_default
    peer_gate: PeerGate = every_peer_open

    def asks_approval(
        self,
        digest: str | UnsetType,
        tool: CatalogueTool,
        requested: RequestedCall,
        verdict: HookVerdict,
    ) -> bool:
        """Whether an approver will be asked about a valid call; ``digest``: of its run's policy."""
        judged = peer_verdict(tool, requested, verdict, self.peer_gate)
        if not tool.only_waits and judged.policy(tool.capability) is not UNSET:
            return True
        return ask_policy(self.policy_of(digest), tool, requested).asks


def request_terms(
    policy: RunPolicy,
    tool: CatalogueTool,
    verdict: HookVerdict,
    answer: PolicyAnswer,
    *,
    retries: bool = False,
) -> RequestTerms:
    """What hooks, the policy and the tool make of the approval; ``answer``: the policy's.
    ``retries``: whether the run has a hook that may ask for one more attempt."""
    if answer.asks:
        verdict = verdict._replace(needs_approval=True)
    capability, subject = tool.capability, tool.subject
    approval = verdict.policy(capability)
    if approval is UNSET:
        may_retry = retries and capability.idempotent and not tool.waits_for
        return RequestTerms(UNSET, may_retry=may_retry)
    risk, allowed = policy.risk_of(subject), policy.decisions_of(subject)
    derived = risk_of(capability.side_effect, idempotent=capability.idempotent)
    return RequestTerms(
        approval,
        UNSET if risk is derived else risk,
        UNSET if allowed == ALL_DECISIONS else allowed,
    )


# --- facts ----------------------------------------------------------------------------------------

NAME_MAX: Final = 128
"""A program may request any name."""


def refused_request(
    batch: CallBatch,
    requested: RequestedCall,
    wrong: ToolFault,
    outcome: PolicyOutcome | UnsetType = UNSET,
) -> facts.Refused:
    return facts.Refused(
        run=str(batch.run),
        generation=batch.generation,
        traceparent=batch.traceparent,
        operation_id=requested.operation_id,
        name=requested.name[:NAME_MAX],
        number=requested.number,
        request_digest=requested.digest,
        error=wrong,
        status=status_of(wrong),
        policy=outcome,
        parent=_parent(batch) or UNSET,
    )


def new_call(
    batch: CallBatch,
    requested: RequestedCall,
    tool: CatalogueTool,
    verdict: HookVerdict,
    terms: RequestTerms,
) -> ToolCall:
    return ToolCall(
        operation_id=requested.operation_id,
        run=str(batch.run),
        generation=batch.generation,
        name=requested.name,
        phase=CallPhase.REQUESTED,
        number=requested.number,
        surface=tool.surface,
        approval=terms.approval,
        risk=terms.risk,
        allowed_decisions=terms.allowed_decisions,
        idempotent=tool.capability.idempotent,
        schema_digest=tool.available.schema_digest,
        request_digest=requested.digest,
        executed_digest=verdict.executed_digest,
        changed_by=verdict.changed_by,
        terms=verdict.terms,
        may_retry=terms.may_retry,
        timeout_ms=tool.capability.limits.timeout_ms,
        traceparent=batch.traceparent,
        arguments=requested.arguments,
        arguments_blob=requested.arguments_blob,
        parent=_parent(batch),
    )


def _parent(batch: CallBatch) -> str:
    """The call of ``run_code`` whose program requests the calls."""
    return batch.operation_id if isinstance(batch, code.Stepped) else ""


def requested_code(batch: CallBatch, requested: RequestedCall) -> facts.Requested:
    """A call of ``run_code``: its driver executes it. It has no intent, as its program may be
    repeated; what acts are the calls of the program."""
    return facts.Requested(
        run=str(batch.run),
        generation=batch.generation,
        traceparent=batch.traceparent,
        operation_id=requested.operation_id,
        name=requested.name,
        surface=CODE_SURFACE,
        number=requested.number,
        side_effect=SideEffect.NONE,
        idempotent=True,
        idempotency_key=requested.operation_id,
        schema_digest="",
        request_digest=requested.digest,
        timeout_ms=0,
        arguments=requested.arguments,
        arguments_blob=requested.arguments_blob,
    )


def requested_fact(
    call: ToolCall, tool: CatalogueTool, asked: PolicyOutcome | UnsetType, *, waits: bool
) -> facts.Requested:
    return facts.Requested(
        **call_fields(call),
        name=call.name,
        surface=call.surface,
        number=call.number,
        side_effect=tool.capability.side_effect,
        idempotent=call.idempotent,
        idempotency_key=call.operation_id,
        schema_digest=call.schema_digest,
        request_digest=call.request_digest,
        executed_digest=call.executed_digest or UNSET,
        changed_by=call.changed_by or UNSET,
        terms=call.terms,
        may_retry=call.may_retry or UNSET,
        timeout_ms=call.timeout_ms,
        arguments=call.arguments,
        arguments_blob=call.arguments_blob,
        waits=waits,
        approval=call.approval,
        risk=call.risk,
        allowed_decisions=call.allowed_decisions,
        policy=asked,
        parent=call.parent or UNSET,
    )


def recovery_required(call: ToolCall, reason: str, until_ms: int) -> facts.RecoveryRequired:
    return facts.RecoveryRequired(**call_fields(call), reason=reason, may_act_until_ms=until_ms)


def cancelled_call(call: ToolCall, reason: str) -> facts.Failed:
    wrong = fault("CANCELLED", f"{reason}, and its run no longer waits for it")
    return facts.Failed(**call_fields(call), error=wrong, status=status_of(wrong), duration_ms=0)


def refused_call(call: ToolCall, wrong: ToolFault) -> facts.Refused:
    return facts.Refused(
        **call_fields(call),
        name=call.name,
        number=call.number,
        request_digest=call.request_digest,
        error=wrong,
        status=status_of(wrong),
    )
