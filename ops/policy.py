"""The policy of a node: from its configuration to the runs that start, and to those who ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.approvals import ApprovalRule, RuleInput, RuleUndecided
from rookery.actors.kernel import QueryHandler
from rookery.actors.policy import Escalation, PolicyStep, RunPolicies, RunPolicy
from rookery.actors.tools import CatalogueTool, ToolCatalogue
from rookery.bus.ports import Bus, Delivery
from rookery.ops.config import ApprovalsConfig
from rookery.schemas.calls import ApprovalMode, AutoApproval, AvailableTool
from rookery.schemas.codec import decode_command
from rookery.schemas.protection.policy import (
    ExplainedStep,
    ExplainPolicy,
    PolicyExplanation,
    PolicySettings,
    RuleDecision,
)
from rookery.schemas.seed.policy_decisions import MissingDependency

__all__ = ["PolicyServices", "judged_tools", "open_policies"]


async def open_policies(
    bus: Bus, settings: PolicySettings, approvals: ApprovalsConfig
) -> RunPolicies:
    """The policies of runs; the node's own is stored before a run keeps its digest."""
    escalation = Escalation(bool(approvals.dispatchers), approvals.timeout_ms)
    policies = RunPolicies(bus.blobs, settings, escalation)
    await policies.store(bus.blobs)
    return policies


def judged_tools(policy: RunPolicy, catalogue: ToolCatalogue) -> tuple[AvailableTool, ...]:
    """The tools of a node, with what its policy decides about all calls of each."""
    return tuple(_judged(policy, tool) for tool in catalogue)


def _judged(policy: RunPolicy, tool: CatalogueTool) -> AvailableTool:
    if not policy.digest or tool.waits_for:
        return tool.available
    decision = policy.judge(tool.subject).decision
    if decision is RuleDecision.ALLOW:
        return tool.available
    return replace(tool.available, decision=decision)


class PolicyServices:
    """One per node."""

    def __init__(self, policies: RunPolicies, catalogue: ToolCatalogue) -> None:
        self._policies, self._catalogue = policies, catalogue
        self.queries: Mapping[str, QueryHandler] = {"policy": self.explain}

    async def explain(self, delivery: Delivery) -> PolicyExplanation:
        """The query ``policy``: the policy of runs that start now, and what it decides."""
        query = decode_command(delivery.body, ExplainPolicy, content_type=delivery.content_type)
        policy = self._policies.current
        explanation = PolicyExplanation(
            policy=policy.settings, digest=policy.digest, not_bound=self._not_bound(policy)
        )
        if not query.tool:
            return explanation
        tool = self._catalogue.require(query.tool)
        arguments: Any = UNSET
        if query.arguments is not UNSET:
            tool.checks.check_arguments((), query.arguments)
            arguments = tool.checks.visible((), query.arguments)
        steps = [_to_step(step) for step in policy.judge(tool.subject, arguments).steps]
        if all(step.decision is not RuleDecision.DENY for step in steps):
            steps += self._approval_steps(tool, arguments)
        return replace(
            explanation,
            decision=_last_word(steps),
            steps=tuple(steps),
            risk=policy.risk_of(tool.subject),
            effect_class=tool.subject.effect_class,
            allowed_decisions=policy.decisions_of(tool.subject),
        )

    def _approval_steps(self, tool: CatalogueTool, arguments: Any) -> list[ExplainedStep]:
        """What the tool's own approval policy says behind the policy."""
        match tool.capability.approval_policy:
            case ApprovalMode.NONE:
                return []
            case AutoApproval(auto=auto):
                decision, text = _by_rule(tool, auto.rule, arguments)
                code = "approval.auto"
            case mode:
                decision, text = RuleDecision.ASK, "an approver is asked about every call"
                code = f"approval.{mode.value}"
        if decision is RuleDecision.ASK and not self._policies.current.can_ask:
            decision = RuleDecision.DENY
            code = MissingDependency.APPROVAL_DISPATCHER.reason_code
        return [ExplainedStep(step="approval", text=text, decision=decision, code=code)]

    def _not_bound(self, policy: RunPolicy) -> tuple[str, ...]:
        """Tools whose network nothing here limits, although the policy says something of it."""
        return tuple(
            tool.available.name
            for tool in self._catalogue
            if tool.subject.uses_network(tool.subject.permissions)
            and not tool.subject.names_host
            and isinstance(tool.subject.entry_of(policy.settings.network, ""), tuple)
        )


def _to_step(step: PolicyStep) -> ExplainedStep:
    return ExplainedStep(
        step=step.step,
        text=step.text,
        decision=step.decision,
        code=step.code,
        outcome=step.outcome,
    )


def _last_word(steps: Sequence[ExplainedStep]) -> RuleDecision:
    decisions = {step.decision for step in steps}
    order = (RuleDecision.DENY, RuleDecision.ASK)
    return next((one for one in order if one in decisions), RuleDecision.ALLOW)


def _by_rule(tool: CatalogueTool, rule: str, arguments: Any) -> tuple[RuleDecision, str]:
    """What an automatic approval says of the call; ``counts`` are those of a first one."""
    if arguments is UNSET:
        return RuleDecision.ASK, f"the rule {rule} decides by the arguments"
    subject, capability = tool.subject, tool.capability
    call = RuleInput(
        name=subject.name,
        surface=subject.surface,
        side_effect=capability.side_effect.value,
        idempotent=capability.idempotent,
        session="",
        args=arguments,
        counts={"run": 0, "session": 0},
        risk=subject.risk.value,
        effect_class=subject.effect_class.value,
    )
    try:
        allows = ApprovalRule.of(rule).allows(call)
    except RuleUndecided as undecided:
        return RuleDecision.ASK, f"the rule {rule} is undecided: {undecided}"
    if allows:
        return RuleDecision.ALLOW, f"the rule {rule} is true"
    return RuleDecision.ASK, f"the rule {rule} is false"
