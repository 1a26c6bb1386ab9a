"""The spec of a hook: where it is invoked, by which executor, and what it may change.

Field order is the contract's: the hash of a spec is that of its JSON. Every rule about a single
spec is in ``validate``; rules about several of them and about a realm are in ``actors/hooks``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from rookery.schemas.codec import encode_json
from rookery.schemas.ids import HookExecutorRef, HookId
from rookery.schemas.scalars import Unsigned
from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.hook import (
    HookFailurePolicy,
    HookPoint,
    HookRecord,
    HookResponseClass,
    RegisteredHook,
)
from rookery.schemas.seed.refs import PolicyKind, PolicyRef

__all__ = [
    "HOOK_SIDECAR_KIND",
    "HOOK_SIDECAR_VERSION",
    "BlockingHook",
    "HookMutationRights",
    "HookOrdering",
    "HookOrderingPhase",
    "HookOverflowPolicy",
    "HookPrivacyPolicy",
    "HookQueueConfig",
    "HookSource",
    "HookSpec",
    "HookTimeoutPolicy",
    "NonBlockingHook",
    "hook_policy_ref",
    "invalid_package",
    "ordered_hooks_for_point",
    "validate_hook_specs",
]

HOOK_SIDECAR_KIND: Final = "hook_spec"
HOOK_SIDECAR_VERSION: Final = "v1"


class HookSource(StrEnum):
    """The origin of a hook."""

    HOST_CONFIG = "host_config"
    IN_PROCESS = "in_process"
    EXTENSION = "extension"
    SDK_DEFAULT = "sdk_default"
    TEST_ONLY_FAKE = "test_only_fake"


class HookOrderingPhase(StrEnum):
    EARLY = "early"
    NORMAL = "normal"
    LATE = "late"


_PHASES: Final = tuple(HookOrderingPhase)
_POINTS: Final = {point: number for number, point in enumerate(HookPoint)}
_CLASSES: Final = tuple(HookResponseClass)


class HookOrdering(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a hook among those of its point."""

    phase: HookOrderingPhase = HookOrderingPhase.NORMAL
    order: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 100


# --- execution ------------------------------------------------------------------------------------


class HookOverflowPolicy(StrEnum):
    """What follows if the queue of an observer is full."""

    DROP_OBSERVE_ONLY = "drop_observe_only"
    SUMMARIZE_AND_CONTINUE = "summarize_and_continue"
    FAIL_HOOK_INVOCATION = "fail_hook_invocation"


class HookQueueConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The size of an observer's queue, and the part of it that is reserved for terminal facts."""

    capacity: Annotated[int, Meta(ge=1)] = 64
    terminal_reserve: Annotated[int, Meta(ge=1)] = 4


class _Execution(msgspec.Struct, frozen=True, kw_only=True, tag_field="mode"):
    """How a hook is executed."""


class BlockingHook(_Execution, frozen=True, kw_only=True, tag="blocking"):
    """The run waits for the answer."""


class NonBlockingHook(_Execution, frozen=True, kw_only=True, tag="non_blocking"):
    """The hook observes, and the run does not wait."""

    queue: HookQueueConfig = HookQueueConfig()
    overflow: HookOverflowPolicy = HookOverflowPolicy.DROP_OBSERVE_ONLY


class HookTimeoutPolicy(msgspec.Struct, frozen=True, kw_only=True):
    timeout_ms: Unsigned = 250


# --- rights ---------------------------------------------------------------------------------------


class HookMutationRights(msgspec.Struct, frozen=True, kw_only=True):
    """The classes of responses that a hook may give: a set, written in the order of the classes."""

    rights: tuple[HookResponseClass, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.rights), key=_CLASSES.index))
        if ordered != self.rights:
            msgspec.structs.force_setattr(self, "rights", ordered)

    @classmethod
    def observe_only(cls) -> HookMutationRights:
        return cls.from_rights(())

    @classmethod
    def deny_or_request_approval(cls) -> HookMutationRights:
        return cls.from_rights((HookResponseClass.DENY, HookResponseClass.REQUEST_APPROVAL))

    @classmethod
    def from_rights(cls, rights: Iterable[HookResponseClass]) -> HookMutationRights:
        """These rights and that to observe."""
        return cls(rights=(HookResponseClass.OBSERVE, *rights))

    def allows_response_class(self, response_class: HookResponseClass) -> bool:
        return response_class in self.rights

    @property
    def can_change_behavior(self) -> bool:
        return any(right.changes_behavior for right in self.rights)


class HookPrivacyPolicy(StrEnum):
    """How much of its subject a hook sees."""

    ENVELOPE_AND_REDACTED_SUMMARY = "envelope_and_redacted_summary"
    CONTENT_REFS_ONLY = "content_refs_only"
    CONTENT_CAPTURE_ALLOWED = "content_capture_allowed"


# --- spec -----------------------------------------------------------------------------------------


class HookSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One hook. The defaults are those of both presets."""

    hook_id: HookId
    point: HookPoint
    source: HookSource
    ordering: HookOrdering = HookOrdering()
    execution: BlockingHook | NonBlockingHook
    timeout: HookTimeoutPolicy = HookTimeoutPolicy()
    failure: HookFailurePolicy
    mutation_rights: HookMutationRights
    privacy: HookPrivacyPolicy = HookPrivacyPolicy.ENVELOPE_AND_REDACTED_SUMMARY
    policy_ref: PolicyRef
    executor_ref: HookExecutorRef

    @classmethod
    def observe(
        cls,
        hook_id: str,
        point: HookPoint,
        source: HookSource,
        executor_ref: str,
        policy_ref: PolicyRef,
    ) -> HookSpec:
        """Preset of a hook that only observes."""
        return cls(
            hook_id=HookId(hook_id),
            point=point,
            source=source,
            execution=NonBlockingHook(),
            failure=HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY,
            mutation_rights=HookMutationRights.observe_only(),
            policy_ref=policy_ref,
            executor_ref=HookExecutorRef(executor_ref),
        )

    @classmethod
    def blocking(
        cls,
        hook_id: str,
        point: HookPoint,
        source: HookSource,
        executor_ref: str,
        policy_ref: PolicyRef,
        *,
        mutation_rights: HookMutationRights,
    ) -> HookSpec:
        """Preset of a hook for whose answer the run waits."""
        return cls(
            hook_id=HookId(hook_id),
            point=point,
            source=source,
            execution=BlockingHook(),
            failure=HookFailurePolicy.INTERRUPT_RUN,
            mutation_rights=mutation_rights,
            policy_ref=policy_ref,
            executor_ref=HookExecutorRef(executor_ref),
        )

    @property
    def is_blocking(self) -> bool:
        return isinstance(self.execution, BlockingHook)

    @property
    def is_security_relevant(self) -> bool:
        return self.point.is_security_critical or self.mutation_rights.can_change_behavior

    @property
    def may_fail_open(self) -> bool:
        """Whether the run continues if the hook fails."""
        return not self.is_security_relevant and not self.failure.fails_closed

    def validate(self) -> None:
        """Raise ``AgentError`` for the first broken rule."""
        if self.timeout.timeout_ms == 0:
            raise invalid_package("hook timeout_ms must be greater than zero")
        if not self.policy_ref.as_str():
            raise invalid_package("hook policy_ref is required")
        allowed = self.point.allowed_response_classes
        for right in self.mutation_rights.rights:
            if right not in allowed:
                raise invalid_package(
                    f"hook mutation right {right.variant} is not allowed at {self.point.variant}"
                )
        if not self.is_blocking and self.mutation_rights.can_change_behavior:
            raise invalid_package("nonblocking hooks must be observe-only in the first Rust slice")
        if self.is_security_relevant and not self.failure.fails_closed:
            raise invalid_package("security-relevant hooks cannot use fail-open failure policy")

    def sort_key(self) -> tuple[int, int, int, str]:
        """By point, phase, order and id."""
        phase = _PHASES.index(self.ordering.phase)
        return _POINTS[self.point], phase, self.ordering.order, self.hook_id.as_str()

    def spec_hash(self) -> str:
        """SHA-256 of the JSON of a valid spec."""
        self.validate()
        return f"sha256:{sha256(encode_json(self)).hexdigest()}"

    def sidecar_id(self) -> str:
        return f"hook.{self.hook_id.as_str()}"

    def registered(self) -> HookRecord:
        """The record of the hook's registration."""
        event = RegisteredHook(
            spec_hash=self.spec_hash(),
            executor_ref=self.executor_ref.as_str(),
            policy_ref=self.policy_ref,
        )
        return HookRecord(hook_id=self.hook_id, point=self.point, payload=event)


def validate_hook_specs(specs: Iterable[HookSpec]) -> None:
    """Raise ``AgentError`` for the first invalid spec."""
    for spec in specs:
        spec.validate()


def ordered_hooks_for_point(specs: Sequence[HookSpec], point: HookPoint) -> tuple[HookSpec, ...]:
    """The hooks of a point in the order in which they are invoked."""
    return tuple(sorted((spec for spec in specs if spec.point is point), key=HookSpec.sort_key))


def hook_policy_ref(policy_id: str) -> PolicyRef:
    return PolicyRef.new(policy_id, PolicyKind.RUNTIME_PACKAGE)


def invalid_package(message: str) -> AgentError:
    return AgentError.new(
        AgentErrorKind.INVALID_PACKAGE, RetryClassification.HOST_CONFIGURATION_NEEDED, message
    )
