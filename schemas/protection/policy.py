"""The policy of calls, as ``[policy]`` of a node's configuration says it, and as a run keeps it.

A run has the policy of its start. The whole policy is in the blob store, under the digest that is
in the run's environment; the default one is not stored, because it changes nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.protection.rights import SideEffect
from rookery.schemas.seed.policies import CapabilityPermission
from rookery.schemas.seed.policy_decisions import (
    ApprovalDecisionKind,
    EffectClass,
    PolicyOutcome,
    RiskClass,
)

__all__ = [
    "ALL_DECISIONS",
    "CallRule",
    "CallTerms",
    "ExplainPolicy",
    "ExplainedStep",
    "Isolation",
    "PolicyExplanation",
    "PolicySettings",
    "RuleDecision",
    "decode_policy",
    "effect_class_of",
    "encode_policy",
    "risk_of",
]

RULES_MAX: Final = 256

_EFFECTS: Final = {
    SideEffect.NONE: (EffectClass.READ, 0),
    SideEffect.READ: (EffectClass.READ, 0),
    SideEffect.WRITE: (EffectClass.WRITE, 1),
    SideEffect.NETWORK: (EffectClass.NETWORK, 1),
    SideEffect.DATABASE: (EffectClass.WRITE, 1),
    SideEffect.EXTERNAL_SYSTEM: (EffectClass.PROCESS, 2),
}
_RISKS: Final = tuple(RiskClass)
ALL_DECISIONS: Final = tuple(ApprovalDecisionKind)


def effect_class_of(side_effect: SideEffect) -> EffectClass:
    """What a call with this side effect touches."""
    return _EFFECTS[side_effect][0]


def risk_of(side_effect: SideEffect, *, idempotent: bool) -> RiskClass:
    """The risk of a call whose tool declares none."""
    return _RISKS[_EFFECTS[side_effect][1] + (not idempotent)]


# --- settings -------------------------------------------------------------------------------------


class RuleDecision(StrEnum):
    """What a policy decides about a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


_Path = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_]{1,128})?\Z")]
"""A surface, or ``surface/tool`` with the tool's name in programs."""


class CallRule(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A table ``[[policy.rules]]``: the decision on one permission for one surface or tool. The
    first rule that matches decides."""

    permission: CapabilityPermission
    decision: RuleDecision
    source: _Path | Literal[""] = ""
    """Empty: every surface."""


class Isolation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls of a surface need a process of their own."""

    require_isolation: Annotated[str, Meta(min_length=1, max_length=128)]
    """``process``, which servers of ``mcp_stdio`` have; no node has another."""
    otherwise: RuleDecision = RuleDecision.DENY
    """The decision where the surface has it not."""


class CallTerms(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A table ``[policy.approvals.PATH]``: how approvals of a surface's or a tool's calls are
    requested, instead of as the tool declares it."""

    risk: RiskClass | UnsetType = UNSET
    allowed_decisions: (
        Annotated[tuple[ApprovalDecisionKind, ...], Meta(min_length=1)] | UnsetType
    ) = UNSET


class PolicySettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What calls of programs may do, beside the rights of their run."""

    default: RuleDecision = RuleDecision.ALLOW
    """Of a permission without a rule."""
    undeclared: RuleDecision = RuleDecision.ALLOW
    """Of tools whose permissions are not known: they declare none, and none is derived."""
    rules: Annotated[tuple[CallRule, ...], Meta(max_length=RULES_MAX)] = ()
    execution: dict[_Path, Literal["allow", "deny"] | Isolation] = {}
    """By surface or tool. Without an entry, calls are executed where their surface is."""
    network: dict[_Path, Literal["enabled", "disabled"] | tuple[str, ...]] = {}
    """By surface or tool: the hosts that its calls may name in an argument ``url`` or ``uri``. It
    binds tools with the permission ``Network``; what a function does beside is not seen."""
    approvals: dict[_Path, CallTerms] = {}


_decode: Final = msgspec.json.Decoder(PolicySettings).decode
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def encode_policy(settings: PolicySettings) -> bytes:
    """The blob of a policy."""
    return _encode(settings)


def decode_policy(data: bytes) -> PolicySettings:
    """A policy from its blob. One with a field that this version does not know is refused, because
    it may deny more."""
    return _decode(data)


# --- explanation ----------------------------------------------------------------------------------


class ExplainPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query what the node's policy decides (verb ``policy``)."""

    tool: Annotated[str, Meta(max_length=128)] = ""
    """Empty: the policy alone."""
    arguments: dict[str, Any] | UnsetType = UNSET
    """By name; unset: what holds for every call."""


class ExplainedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a decision, in the order in which they are taken."""

    step: str
    """``permission``, ``execution``, ``network``, ``approval`` or ``escalation``."""
    text: str
    decision: RuleDecision
    code: str
    outcome: PolicyOutcome | UnsetType = UNSET
    """As the contract says it; unset for a step that is not the policy's."""


class PolicyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of runs that start on the node now."""

    policy: PolicySettings
    digest: str
    """Empty for the default policy."""
    decision: RuleDecision = RuleDecision.ALLOW
    steps: tuple[ExplainedStep, ...] = ()
    """Of the tool."""
    risk: RiskClass | UnsetType = UNSET
    effect_class: EffectClass | UnsetType = UNSET
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    not_bound: tuple[str, ...] = ()
    """Tools with ``Network`` and without an argument that names a host: nothing here binds them."""
