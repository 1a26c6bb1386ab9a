"""Seed 000: the declaration of a function that a host offers to programs. Names are the contract.

Every field is written.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.run import SideEffect

__all__ = [
    "ApprovalMode",
    "ApprovalPolicy",
    "AutoApproval",
    "AutoRule",
    "Capability",
    "CapabilityLimits",
    "RecordMode",
    "is_python_identifier",
]

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class CapabilityLimits(msgspec.Struct, frozen=True, kw_only=True):
    timeout_ms: int = 5_000
    max_request_bytes: int = 1_048_576
    max_response_bytes: int = 1_048_576
    concurrency: int = 16
    rate_per_min: int | None = None


class ApprovalMode(StrEnum):
    """The policies that need no rule."""

    NONE = "none"
    MANUAL = "manual"
    """An approver is asked; an approval for the session covers the arguments it was given for."""
    MANUAL_ANY_ARGUMENTS = "manual_any_arguments"
    """As ``manual``, but an approval for the session covers the tool with any arguments."""


class AutoRule(msgspec.Struct, frozen=True):
    rule: str


class AutoApproval(msgspec.Struct, frozen=True):
    """A rule approves the call: ``{"auto": {"rule": ...}}``."""

    auto: AutoRule


class RecordMode(StrEnum):
    """When the journal gets a call's intent."""

    BEFORE = "before"
    """Before the tool is called: no call is repeated without a record of it."""
    AFTER = "after"
    """With its outcome: after a crash, calls without a record may be repeated."""


ApprovalPolicy: TypeAlias = ApprovalMode | AutoApproval


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the host. Schemas are JSON Schema 2020-12: of the result, and of the positional
    arguments if it is an array, or else of the named ones."""

    name: str
    description: str
    input_schema: Any = msgspec.field(default_factory=lambda: {"type": "array"})
    output_schema: Any = msgspec.field(default_factory=dict)
    side_effect: SideEffect = SideEffect.NONE
    limits: CapabilityLimits = CapabilityLimits()
    approval_policy: ApprovalPolicy = ApprovalMode.NONE
    idempotent: bool = True
    record: RecordMode | UnsetType = UNSET
    """Not in the seed. Unset is ``before``; ``after`` is for tools without side effects that need
    no approval."""
    binding: str | UnsetType = UNSET
    """Not in the seed. The credentials that its calls need, in the realm of the node: ``binding``
    or ``binding:profile`` of an ``AuthBindingRef``. A call waits until they are fresh."""


def is_python_identifier(name: str) -> bool:
    """Whether programs can call a capability by this name. ASCII only; keywords pass, as in the
    contract."""
    return bool(_IDENTIFIER.fullmatch(name))
