"""Registrations of hooks: a spec of the contract, and what Rookery adds to it.

The spec's hash covers the spec alone. The registration has a digest of its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.digest import digest_json
from rookery.schemas.seed.hook import HookResponseClass
from rookery.schemas.seed.hook_invocation import (
    DenyResponse,
    RequestApprovalResponse,
    StopRunResponse,
)
from rookery.schemas.seed.hook_spec import HookSpec

__all__ = [
    "HookExecutorKind",
    "HookMode",
    "HookRegistration",
    "PythonHook",
    "RuleHook",
    "RuleVerdict",
]


class HookMode(StrEnum):
    """What a registered hook does."""

    ENFORCE = "enforce"
    AUDIT = "audit"
    """It is invoked and judged, and nothing is applied."""
    OFF = "off"
    """It is not invoked."""


RuleVerdict: TypeAlias = DenyResponse | RequestApprovalResponse | StopRunResponse


class _HookExecutor(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """How a hook is invoked."""


class RuleHook(_HookExecutor, frozen=True, kw_only=True, tag="rule"):
    """A rule: if ``when`` of the registration is true, the answer is ``then``."""

    then: RuleVerdict

    @property
    def response_class(self) -> HookResponseClass:
        return self.then.response_class


class PythonHook(_HookExecutor, frozen=True, kw_only=True, tag="python"):
    """A function of the node's process."""

    function: str
    """``<module>.<name>``."""


HookExecutorKind: TypeAlias = RuleHook | PythonHook


class HookRegistration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hook of a realm or of a node."""

    spec: HookSpec
    mode: HookMode | UnsetType = UNSET
    """A hook that may change or stop something has to say it."""
    when: str = ""
    """A rule: if it is false, the hook is not invoked. See ``actors/approvals/rules.py``."""
    executor: HookExecutorKind

    @property
    def is_enabled(self) -> bool:
        return self.mode is not HookMode.OFF

    def executor_ref(self) -> str:
        """The ref that its executor has."""
        match self.executor:
            case RuleHook(then=then):
                return f"rule:{digest_json([self.when, then])}"
            case PythonHook(function=function):
                return f"python:{function}"

    def digest(self) -> str:
        return digest_json(self)
