"""Where a tool may execute: not on the host, in an isolating adapter, or anywhere.

The host knows its adapters; the policy only asks whether the named one is available.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.enums import Tagged
from rookery.schemas.seed.policy import PolicyDecision, PolicyOutcome, PolicyStage
from rookery.schemas.seed.refs import PolicyRef
from rookery.schemas.typed_ids import AdapterRef

__all__ = [
    "EgressAllowlist",
    "HostExecution",
    "IsolatedBy",
    "NetworkAccess",
    "NetworkPolicy",
    "RequireIsolation",
    "SandboxMode",
    "SandboxPolicy",
]


class HostExecution(StrEnum):
    """The modes without an adapter."""

    DENIED = "DenyHostExecution"
    ALLOWED = "AllowHostExecution"


class IsolatedBy(msgspec.Struct, frozen=True):
    adapter_ref: AdapterRef


class RequireIsolation(Tagged, frozen=True, kw_only=True):
    require_isolation: IsolatedBy | None = None


SandboxMode = HostExecution | RequireIsolation


class NetworkAccess(StrEnum):
    """The policies without a list of hosts."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class EgressAllowlist(Tagged, frozen=True, kw_only=True):
    egress_allowlist: tuple[str, ...] | None = None
    """The only hosts a tool may reach."""


NetworkPolicy = NetworkAccess | EgressAllowlist


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    policy_ref: PolicyRef
    mode: SandboxMode
    network: NetworkPolicy
    missing_adapter_decision: PolicyDecision

    @classmethod
    def host_denied(cls, policy_ref: PolicyRef) -> SandboxPolicy:
        return cls(
            policy_ref=policy_ref,
            mode=HostExecution.DENIED,
            network=NetworkAccess.DISABLED,
            missing_adapter_decision=PolicyDecision.deny("sandbox.missing_adapter"),
        )

    def evaluate(self, *, adapter_available: bool) -> PolicyOutcome:
        return PolicyOutcome(
            stage=PolicyStage.PRE_TOOL,
            decision=self._decision(adapter_available=adapter_available),
            policy_refs=(self.policy_ref,),
        )

    def _decision(self, *, adapter_available: bool) -> PolicyDecision:
        if self.mode is HostExecution.DENIED:
            return PolicyDecision.deny("sandbox.host_denied")
        if self.mode is HostExecution.ALLOWED or adapter_available:
            return PolicyDecision.allow("sandbox.allowed")
        return self.missing_adapter_decision
