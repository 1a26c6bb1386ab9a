"""What a policy decides about a call: permissions, then execution, network, and escalation. Pure.

Each step allows, asks or denies; a denial ends the decision, and a call is asked about if any step
asks. The steps are the contract's policies, made of the settings that name the call's tool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType

from rookery.actors.policy.subject import PolicySubject
from rookery.bus.ports import BlobReader, Blobs
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed
from rookery.schemas.ids import AdapterRef
from rookery.schemas.protection.policy import (
    CallTerms,
    Isolation,
    PolicySettings,
    RuleDecision,
    decode_policy,
    encode_policy,
)
from rookery.schemas.seed.policies import (
    AskPolicy,
    CapabilityPermission,
    EgressAllowlist,
    EscalationPolicy,
    HostExecution,
    IsolatedBy,
    NetworkAccess,
    NetworkPolicy,
    PermissionGrant,
    PermissionPolicy,
    PermissionRequest,
    RequireIsolation,
    SandboxPolicy,
)
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    ApprovalRequestSpec,
    DispatcherScope,
    MissingDependency,
    PolicyDecision,
    PolicyOutcome,
    PolicyStage,
    RiskClass,
)
from rookery.schemas.seed.refs import PolicyKind, PolicyRef, PrivacyClass, RetentionClass

__all__ = ["Escalation", "PolicyJudgement", "PolicyStep", "RunPolicies", "RunPolicy"]

HOST_DEFAULT: Final = "policy.host_default"
_RETENTION: Final = RetentionClass.RUN_SCOPED
_PRIVACY: Final = PrivacyClass.INTERNAL


class Escalation(NamedTuple):
    """How a question of the policy reaches an approver, on this node."""

    is_possible: bool = True
    """Whether the node has a dispatcher."""
    timeout_ms: int = 86_400_000


class ReasonCodes(NamedTuple):
    """Why the settings allow or deny."""

    allows: str
    denies: str


BY_RULE: Final = ReasonCodes("permission.granted", "permission.denied")
BY_DEFAULT: Final = ReasonCodes("permission.host_default", "permission.default_deny")


class PolicyStep(NamedTuple):
    """One step of a decision."""

    step: str
    text: str
    outcome: PolicyOutcome

    @property
    def decision(self) -> RuleDecision:
        decision = self.outcome.decision
        if decision.asked is not None:
            return RuleDecision.ASK
        return RuleDecision.ALLOW if decision.is_allow else RuleDecision.DENY

    @property
    def code(self) -> str:
        decision = self.outcome.decision
        reasoned = decision.allowed or decision.denied
        return f"{self.step}.ask" if reasoned is None else reasoned.reason.code


class PolicyJudgement(NamedTuple):
    """The decision about a call, by its steps in order."""

    steps: tuple[PolicyStep, ...]

    @property
    def decisive(self) -> PolicyStep | None:
        """The first step that denies, else the first that asks; ``None`` if all allow."""
        for decision in (RuleDecision.DENY, RuleDecision.ASK):
            for step in self.steps:
                if step.decision is decision:
                    return step
        return None

    @property
    def decision(self) -> RuleDecision:
        return RuleDecision.ALLOW if self.decisive is None else self.decisive.decision


class RunPolicy:
    """A policy, ready to judge calls."""

    def __init__(
        self, settings: PolicySettings, digest: str = "", escalation: Escalation | None = None
    ) -> None:
        """``digest``: of the stored policy; empty for the default one, which is not stored."""
        self.settings, self.digest = settings, digest
        self._escalation = escalation or Escalation()
        self._name = f"policy.{digest[:16]}" if digest else HOST_DEFAULT

    @property
    def can_ask(self) -> bool:
        """Whether a question reaches an approver."""
        return self._escalation.is_possible

    # --- approvals --------------------------------------------------------------------------------

    def risk_of(self, subject: PolicySubject) -> RiskClass:
        """The operator's word, else the tool's own."""
        named = (terms.risk for terms in self._terms(subject) if terms.risk is not UNSET)
        return next(named, subject.risk)

    def decisions_of(self, subject: PolicySubject) -> tuple[ApprovalDecisionKind, ...]:
        """The decisions that an approver of its calls may take."""
        for terms in self._terms(subject):
            if terms.allowed_decisions is not UNSET:
                return terms.allowed_decisions
        return subject.allowed_decisions

    # --- decision ---------------------------------------------------------------------------------

    def judge(
        self, subject: PolicySubject, arguments: Mapping[str, Any] | UnsetType | None = UNSET
    ) -> PolicyJudgement:
        """The decision about a call with these arguments: by name, or a list; ``None`` if they
        cannot be read here. Unset: about every call of the tool."""
        steps: list[PolicyStep] = []
        for step in self._steps(subject, arguments):
            steps.append(step)
            if step.decision is RuleDecision.DENY:
                return PolicyJudgement(tuple(steps))
        asks = any(step.decision is RuleDecision.ASK for step in steps)
        if asks:
            steps.append(self._escalation_step(subject))
        return PolicyJudgement(tuple(steps))

    def _steps(self, subject: PolicySubject, arguments: Any) -> Iterator[PolicyStep]:
        needed = subject.needed(arguments)
        if needed is None:
            undeclared = ReasonCodes("permission.undeclared", "permission.undeclared")
            decision = self._configured(subject, self.settings.undeclared, undeclared)
            text = f"{subject.path} declares no permissions"
            yield PolicyStep("permission", text, self._outcome(PolicyKind.PERMISSION, decision))
        else:
            for permission in needed:
                yield self._permission_step(subject, permission)
        yield self._execution_step(subject)
        if subject.uses_network(needed):
            yield self._network_step(subject, arguments)

    def _permission_step(
        self, subject: PolicySubject, permission: CapabilityPermission
    ) -> PolicyStep:
        source, destination = subject.source, subject.destination
        grants = tuple(
            PermissionGrant(
                source=source,
                capability=rule.permission,
                decision=self._configured(subject, rule.decision, BY_RULE),
            )
            for rule in self.settings.rules
            if subject.is_at(rule.source)
        )
        policy = PermissionPolicy(
            policy_ref=self._ref(PolicyKind.PERMISSION),
            grants=grants,
            default_decision=self._configured(subject, self.settings.default, BY_DEFAULT),
        )
        request = PermissionRequest(
            stage=PolicyStage.PRE_TOOL,
            source=source,
            destination=destination,
            capability=permission,
            privacy=_PRIVACY,
            retention=_RETENTION,
        )
        text = f"{subject.path} needs {permission}"
        return PolicyStep("permission", text, policy.check(request))

    def _execution_step(self, subject: PolicySubject) -> PolicyStep:
        chosen = subject.entry_of(self.settings.execution, "allow")
        adapter, text = "", f"{subject.path} is executed where its surface is"
        missing = PolicyDecision.deny("sandbox.missing_adapter")
        mode: HostExecution | RequireIsolation
        if isinstance(chosen, Isolation):
            adapter = chosen.require_isolation
            mode = RequireIsolation(require_isolation=IsolatedBy(AdapterRef(adapter)))
            code = MissingDependency.ISOLATION_RUNTIME.reason_code
            missing = self._configured(subject, chosen.otherwise, ReasonCodes(code, code))
            text = f"{subject.path} has to be isolated by {adapter}"
        elif chosen == "deny":
            mode, text = HostExecution.DENIED, f"{subject.path} may not be executed"
        else:
            mode = HostExecution.ALLOWED
        policy = SandboxPolicy(
            policy_ref=self._ref(PolicyKind.SANDBOX),
            mode=mode,
            network=self._network(subject),
            missing_adapter_decision=missing,
        )
        available = bool(adapter) and adapter == subject.adapter
        return PolicyStep("execution", text, policy.evaluate(adapter_available=available))

    def _network(self, subject: PolicySubject) -> NetworkPolicy:
        chosen = subject.entry_of(self.settings.network, "enabled")
        if isinstance(chosen, tuple):
            return EgressAllowlist(egress_allowlist=chosen)
        return NetworkAccess.ENABLED if chosen == "enabled" else NetworkAccess.DISABLED

    def _network_step(self, subject: PolicySubject, arguments: Any) -> PolicyStep:
        """The hosts that an argument may name; a host that cannot be read is none of them."""
        network, text = self._network(subject), f"{subject.path} uses the network"
        allowed = PolicyDecision.allow("network.enabled")
        if network is NetworkAccess.DISABLED:
            decision = PolicyDecision.deny("network.disabled")
        elif isinstance(network, NetworkAccess):
            decision = allowed
        elif arguments is UNSET or not subject.names_host:
            hosts = ", ".join(network.egress_allowlist or ())
            text = f"{text}, of which it may reach {hosts or 'nothing'}"
            decision = PolicyDecision.allow("network.allowlist")
            if not subject.names_host:
                text = f"{text}; no argument names a host, so nothing here binds it"
        else:
            host = _host_of(subject, arguments)
            text = f"{text}: {host or 'its host cannot be read'}"
            listed = host.lower() in {one.lower() for one in network.egress_allowlist or ()}
            decision = allowed if listed else PolicyDecision.deny("network.host_denied")
        return PolicyStep("network", text, self._outcome(PolicyKind.SANDBOX, decision))

    def _escalation_step(self, subject: PolicySubject) -> PolicyStep:
        policy = EscalationPolicy(
            policy_ref=self._ref(PolicyKind.APPROVAL),
            dispatcher_required=True,
            timeout_ms=self._escalation.timeout_ms,
            allowed_decisions=self.decisions_of(subject),
        )
        possible = self._escalation.is_possible
        text = "an approver is asked" if possible else "no dispatcher carries the question"
        outcome = policy.evaluate_dispatcher(dispatcher_available=possible)
        return PolicyStep("escalation", text, outcome)

    # --- words of the contract --------------------------------------------------------------------

    def _terms(self, subject: PolicySubject) -> Iterator[CallTerms]:
        for path in (subject.path, subject.surface):
            if path in self.settings.approvals:
                yield self.settings.approvals[path]

    def _configured(
        self, subject: PolicySubject, decision: RuleDecision, codes: ReasonCodes
    ) -> PolicyDecision:
        """A decision of the settings, as the contract says it."""
        match decision:
            case RuleDecision.ALLOW:
                return PolicyDecision.allow(codes.allows)
            case RuleDecision.DENY:
                return PolicyDecision.deny(codes.denies)
        asking = AskPolicy.ask_by_default(self._ref(PolicyKind.APPROVAL), self._request(subject))
        return asking.classify().decision

    def _request(self, subject: PolicySubject) -> ApprovalRequestSpec:
        possible = self._escalation.is_possible
        return ApprovalRequestSpec(
            source=subject.source,
            destination=subject.destination,
            effect_class=subject.effect_class,
            risk_class=self.risk_of(subject),
            dispatcher_scope=DispatcherScope.HOST if possible else DispatcherScope.HEADLESS,
            timeout_ms=self._escalation.timeout_ms,
            allowed_decisions=self.decisions_of(subject),
            policy_refs=(self._ref(PolicyKind.PERMISSION),),
        )

    def _ref(self, kind: PolicyKind) -> PolicyRef:
        return PolicyRef.new(self._name, kind)

    def _outcome(self, kind: PolicyKind, decision: PolicyDecision) -> PolicyOutcome:
        return PolicyOutcome(
            stage=PolicyStage.PRE_TOOL, decision=decision, policy_refs=(self._ref(kind),)
        )


def _host_of(subject: PolicySubject, arguments: Any) -> str:
    """The host that the call names; empty if there is none that can be read."""
    try:
        return urlsplit(subject.address_in(arguments)).hostname or ""
    except ValueError:
        return ""


# --- run policies ---------------------------------------------------------------------------------

# The policies of runs: the node's own, and those that runs of other nodes, or older ones, keep.


POLICIES_MAX: Final = 64
"""In memory; a parked run that resumes reads its own again."""


class RunPolicies:
    """One per node. Read on any thread, loaded on the bus's loop."""

    def __init__(
        self,
        blobs: BlobReader,
        settings: PolicySettings = PolicySettings(),  # noqa: B008 - frozen.
        escalation: Escalation = Escalation(),  # noqa: B008 - frozen.
    ) -> None:
        self._blobs, self._escalation = blobs, escalation
        self.pinned: str | UnsetType = UNSET
        """The digest that runs which start now keep; unset for the default policy."""
        if settings != PolicySettings():
            self.pinned = digest_bytes(encode_policy(settings))
        self.current = RunPolicy(settings, self.pinned or "", escalation)
        self._default = RunPolicy(PolicySettings(), "", escalation)
        self._known: dict[str, RunPolicy] = {}

    async def store(self, blobs: Blobs) -> None:
        """Store the node's policy, before a run keeps its digest."""
        if self.pinned is not UNSET:
            await blobs.put(encode_policy(self.current.settings))

    def get(self, digest: str | UnsetType) -> RunPolicy:
        """The policy of a run in progress; its execution has loaded it."""
        if digest is UNSET:
            return self._default
        if digest == self.pinned:
            return self.current
        found = self._known.get(digest)
        if found is None:
            raise Failed("CONFLICT", "the policy of the run is not loaded any more")
        return found

    async def load(self, digest: str | UnsetType) -> RunPolicy:
        """The policy, read from the blob store if need be."""
        if digest in (UNSET, self.pinned):
            return self.get(digest)
        found = self._known.get(digest)
        if found is None:
            settings = decode_policy(await self._blobs.get(digest))
            found = RunPolicy(settings, digest, self._escalation)
        others = {one: policy for one, policy in self._known.items() if one != digest}
        while len(others) >= POLICIES_MAX:
            del others[next(iter(others))]
        self._known = {**others, digest: found}  # At once: actors read it. The newest are last.
        return found
