"""What every run gets of its node: its guest, its tools, the highest limits and the policy of its
calls, which clients can have explained."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.execution import RunProvisioner
from rookery.actors.execution.agents import ModelBudgets, Models
from rookery.actors.hooks import NodeHooks
from rookery.actors.kernel.executors import QueryHandler
from rookery.actors.policy import Escalation, PolicyStep, RunPolicies, RunPolicy
from rookery.actors.protection.approval_rules import ApprovalRule, RuleInput, RuleUndecided
from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python import GuestCache, RealmBuild, cache_folder
from rookery.actors.sandbox.runtime import open_sandbox
from rookery.actors.sandbox.typescript import JavaScriptBuild
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue
from rookery.bus.clock import entropy
from rookery.bus.ports import Bus, BusLoop, Delivery
from rookery.ops.config import ApprovalsConfig, BudgetsConfig, Config, LimitsConfig
from rookery.ops.processes import ProcessShare
from rookery.ops.surfaces import SurfaceServices
from rookery.schemas.calls import ApprovalMode, AutoApproval, AvailableTool
from rookery.schemas.codec import decode_command
from rookery.schemas.protection.policy import (
    ExplainedStep,
    ExplainPolicy,
    PolicyExplanation,
    PolicySettings,
    RuleDecision,
)
from rookery.schemas.run import SessionLimits
from rookery.schemas.seed.policy_decisions import MissingDependency

__all__ = [
    "PolicyServices",
    "load_sandbox",
    "model_budgets",
    "open_policies",
    "provision",
    "retry_jitter",
]

LIVE_MB_MAX = 2048
"""Of a node's programs that wait; while they hold more, no other run begins."""


async def provision(
    bus: Bus,
    config: Config,
    sandbox: Sandbox,
    surfaces: SurfaceServices,
    *,
    registry: ToolRegistry,
    models: Models,
    policies: RunPolicies,
) -> RunProvisioner:
    """To be called before the realm's catalogue adds to the node's tools."""
    return RunProvisioner(
        builds=sandbox.builds,
        tools=_judged_tools(policies.current, surfaces.tools),
        catalogue=await bus.blobs.put(surfaces.tools.catalogue_bytes),
        limits_max=_limits_max(config.limits),
        entropy=entropy,
        hooks=NodeHooks(registry.hooks, config.hooks.missing_wait_s),
        surfaces=surfaces.live.visible_to,
        added=surfaces.tools.get,
        models=models,
        policy=policies.pinned,
        agents=registry.agents,
    )


async def load_sandbox(
    bus: Bus,
    loop: BusLoop,
    config: Config,
    node: str,
    *,
    key: bytes,
    share: ProcessShare,
    opened: ExitStack,
) -> Sandbox:
    """Open the sandbox with the realm's guest, and store that guest for other nodes."""
    cache = GuestCache(cache_folder(os.environ), packages=config.sandbox.packages)
    shared = RealmBuild(cache, bus.blobs, bus.claims, node)
    await shared.agree()
    await bus.blobs.put((await asyncio.to_thread(JavaScriptBuild.installed, cache)).piece)
    sandbox = await asyncio.to_thread(
        open_sandbox,
        key,
        cache,
        lambda build: loop.run(shared.fetch(build)),
        has_fibers=config.node.fibers,
        live_mb_max=share.divide(LIVE_MB_MAX),
    )
    opened.callback(sandbox.close)
    return sandbox


def _limits_max(limits: LimitsConfig) -> SessionLimits:
    """The highest limits a run or a session may request."""
    return SessionLimits(
        memory_mb=limits.memory_mb_max,
        cpu_ms=limits.cpu_ms_max,
        wall_ms=limits.wall_ms_max,
        max_stdout_bytes=limits.stdout_bytes_max,
        max_external_calls=limits.external_calls_max,
        max_stack_depth=limits.stack_depth_max,
    )


def model_budgets(config: BudgetsConfig) -> ModelBudgets:
    """What the runs of a session, and those of the realm, may use of models together."""
    return ModelBudgets(
        session_tokens=UNSET if config.session_tokens is None else config.session_tokens,
        session_cost_micro_usd=_micro_usd(config.session_cost),
        realm_tokens=UNSET if config.realm_tokens is None else config.realm_tokens,
        realm_cost_micro_usd=_micro_usd(config.realm_cost),
    )


def _micro_usd(dollars: float | None) -> int | UnsetType:
    return UNSET if dollars is None else round(dollars * 1_000_000)


def retry_jitter() -> float:
    """By which the delay before a retry is multiplied, so that many do not come back together."""
    return 0.9 + 0.2 * int.from_bytes(entropy(2)) / 0xFFFF


# --- policy ---------------------------------------------------------------------------------------


async def open_policies(
    bus: Bus, settings: PolicySettings, approvals: ApprovalsConfig
) -> RunPolicies:
    """The policies of runs; the node's own is stored before a run keeps its digest."""
    escalation = Escalation(bool(approvals.dispatchers), approvals.timeout_ms)
    policies = RunPolicies(bus.blobs, settings, escalation)
    await policies.store(bus.blobs)
    return policies


def _judged_tools(policy: RunPolicy, catalogue: ToolCatalogue) -> tuple[AvailableTool, ...]:
    """The tools of a node, with what its policy decides about all calls of each."""
    return tuple(_judged(policy, tool) for tool in catalogue)


def _judged(policy: RunPolicy, tool: CatalogueTool) -> AvailableTool:
    if not policy.digest or tool.only_waits:
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
        judged = () if tool.only_waits else policy.judge(tool.subject, arguments).steps
        steps = [_to_step(step) for step in judged]
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
