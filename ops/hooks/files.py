"""Files of hooks, as operators write them: TOML, one ``[[hook]]`` for each.

A table becomes a registration of the contract. What it leaves out has the defaults of the presets:
a hook that may change or stop something fails closed, one that only observes fails open.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from rookery.schemas.errors import Refused
from rookery.schemas.hooks import (
    HOOKS_MAX,
    HookExecutorKind,
    HookMode,
    HookRegistration,
    HttpHook,
    NatsHook,
    ProgramHook,
    PythonHook,
    RuleHook,
    RuleVerdict,
)
from rookery.schemas.ids import HookExecutorRef, HookId
from rookery.schemas.run import Language
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint, HookResponseClass
from rookery.schemas.seed.hook_invocation import (
    DenyResponse,
    ReasonedSummary,
    RequestApprovalResponse,
    StopRunResponse,
    SummaryOnly,
)
from rookery.schemas.seed.hook_spec import (
    BlockingHook,
    HookMutationRights,
    HookOrdering,
    HookOrderingPhase,
    HookOverflowPolicy,
    HookPrivacyPolicy,
    HookQueueConfig,
    HookSource,
    HookSpec,
    HookTimeoutPolicy,
    NonBlockingHook,
    hook_policy_ref,
)

__all__ = ["read_hooks"]

POLICY: Final = "policy.hooks.realm"
FILE_BYTES_MAX: Final = 1 << 20


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a file of hooks."""


class _RuleTable(
    _Table, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="rule"
):
    """The answer if ``when`` is true."""

    then: HookResponseClass
    summary: str
    code: str = ""

    def executor(self) -> HookExecutorKind:
        return RuleHook(then=self._verdict())

    def _verdict(self) -> RuleVerdict:
        if self.then is HookResponseClass.REQUEST_APPROVAL:
            return RequestApprovalResponse(payload=SummaryOnly(redacted_summary=self.summary))
        reason = ReasonedSummary(code=self.code, redacted_summary=self.summary)
        if self.then is HookResponseClass.DENY:
            return DenyResponse(payload=reason)
        if self.then is HookResponseClass.STOP_RUN:
            return StopRunResponse(payload=reason)
        text = f"a rule answers deny, request_approval or stop_run, not {self.then}"
        raise Refused("HOOK_INVALID", text)


class _PythonTable(
    _Table, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="python"
):
    """A function of the registries that nodes load."""

    function: str

    def executor(self) -> HookExecutorKind:
        return PythonHook(function=self.function)


class _NatsTable(
    _Table, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="nats"
):
    """``rookery hooks serve``, or any NATS client."""

    def executor(self) -> HookExecutorKind:
        return NatsHook()


class _HttpTable(
    _Table, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="http"
):
    """A server, by a signed post."""

    url: str
    secret: str

    def executor(self) -> HookExecutorKind:
        return HttpHook(url=self.url, secret=self.secret)


class _SandboxTable(
    _Table, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="sandbox"
):
    """A program of the sandbox."""

    code: str
    language: Language = Language.PYTHON

    def executor(self) -> HookExecutorKind:
        return ProgramHook(code=self.code, language=self.language)


class _QueueTable(_Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue of an observer for which no run waits."""

    capacity: Annotated[int, Meta(ge=1)] = HookQueueConfig().capacity
    terminal_reserve: Annotated[int, Meta(ge=1)] = HookQueueConfig().terminal_reserve
    overflow: HookOverflowPolicy = HookOverflowPolicy.DROP_OBSERVE_ONLY

    @property
    def execution(self) -> NonBlockingHook:
        size = HookQueueConfig(capacity=self.capacity, terminal_reserve=self.terminal_reserve)
        return NonBlockingHook(queue=size, overflow=self.overflow)


class _HookTable(_Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hook of a file."""

    id: Annotated[str, Meta(min_length=1, max_length=512)]
    point: HookPoint
    executor: _RuleTable | _PythonTable | _NatsTable | _HttpTable | _SandboxTable
    rights: tuple[HookResponseClass, ...] = ()
    mode: HookMode | UnsetType = UNSET
    when: str = ""
    failure: HookFailurePolicy | None = None
    timeout_ms: Annotated[int, Meta(ge=0)] = HookTimeoutPolicy().timeout_ms
    phase: HookOrderingPhase = HookOrdering().phase
    order: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = HookOrdering().order
    privacy: HookPrivacyPolicy = HookPrivacyPolicy.ENVELOPE_AND_REDACTED_SUMMARY
    queue: _QueueTable | None = None
    """Set: no run waits for the hook."""

    def registration(self) -> HookRegistration:
        executor = self.executor.executor()
        rights = self.rights
        if isinstance(executor, RuleHook) and not rights:
            rights = (executor.response_class,)
        spec = HookSpec(
            hook_id=HookId(self.id),
            point=self.point,
            source=HookSource.HOST_CONFIG,
            ordering=HookOrdering(phase=self.phase, order=self.order),
            execution=BlockingHook() if self.queue is None else self.queue.execution,
            timeout=HookTimeoutPolicy(timeout_ms=self.timeout_ms),
            failure=self.failure or HookFailurePolicy.DENY,
            mutation_rights=HookMutationRights.from_rights(rights),
            privacy=self.privacy,
            policy_ref=hook_policy_ref(POLICY),
            executor_ref=HookExecutorRef("unnamed"),
        )
        if self.failure is None and not spec.is_security_relevant:
            spec = replace(spec, failure=HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY)
        made = HookRegistration(spec=spec, mode=self.mode, when=self.when, executor=executor)
        named = replace(spec, executor_ref=HookExecutorRef(made.executor_ref()))
        return replace(made, spec=named)


class _File(_Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    hook: Annotated[tuple[_HookTable, ...], Meta(min_length=1, max_length=HOOKS_MAX)]


def read_hooks(path: Path) -> tuple[HookRegistration, ...]:
    """The registrations of a file; ``Refused`` says what is wrong, and where."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise Refused("HOOK_INVALID", f"{path} has more than {FILE_BYTES_MAX} bytes")
        found = msgspec.convert(tomllib.loads(text.decode()), _File)
        return tuple(one.registration() for one in found.hook)
    except OSError as error:
        raise Refused("INVALID_ARGUMENT", f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # Of TOML, UTF-8, the tables, and ids.
        raise Refused("HOOK_INVALID", f"{path}: {str(error)[:400]}", hint=_HELP) from None


_HELP: Final = "the form of a file: rookery/ops/docs/hooks.md; an example: ops/examples/hooks/"
