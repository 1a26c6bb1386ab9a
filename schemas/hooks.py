"""Registrations of hooks: a spec of the contract, and what Rookery adds to it; the commands and
lists of a realm's hooks.

The spec's hash covers the spec alone. The registration has a digest of its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.digest import digest_json
from rookery.schemas.run import Language
from rookery.schemas.seed.hook import HookResponseClass
from rookery.schemas.seed.hook_invocation import (
    DenyResponse,
    RequestApprovalResponse,
    StopRunResponse,
)
from rookery.schemas.seed.hook_spec import HookSpec

__all__ = [
    "HOOKS_MAX",
    "ChangeHooks",
    "HookActivity",
    "HookExecutorKind",
    "HookList",
    "HookMode",
    "HookReceipt",
    "HookRegistration",
    "HookSettings",
    "HookTrial",
    "HookTrialReport",
    "HooksQuery",
    "HttpHook",
    "ListedHook",
    "NatsHook",
    "NotedAction",
    "ProgramHook",
    "PythonHook",
    "ResumeReceipt",
    "ResumeRun",
    "RuleHook",
    "RuleVerdict",
    "TrialVerdict",
    "TriedCall",
]

HOOKS_MAX = 128
"""Hooks of a realm."""

# --- registrations --------------------------------------------------------------------------------


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


class NatsHook(_HookExecutor, frozen=True, kw_only=True, tag="nats"):
    """A process that answers requests on the subject of the hook: ``rookery hooks serve``, or any
    NATS client with a credential of the role ``hook``."""


class HttpHook(_HookExecutor, frozen=True, kw_only=True, tag="http"):
    """A server, by a signed post."""

    url: Annotated[str, Meta(max_length=2_000)]
    secret: Annotated[str, Meta(min_length=1, max_length=128)]
    """The name of the realm's secret that signs the post and its answer."""


class ProgramHook(_HookExecutor, frozen=True, kw_only=True, tag="sandbox"):
    """A program of the sandbox, in a new session for each invocation."""

    code: Annotated[str, Meta(min_length=1, max_length=32_768)]
    language: Language = Language.PYTHON


HookExecutorKind: TypeAlias = RuleHook | PythonHook | NatsHook | HttpHook | ProgramHook


class HookRegistration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hook of a realm or of a node."""

    spec: HookSpec
    mode: HookMode | UnsetType = UNSET
    """A hook that may change or stop something has to say it."""
    when: str = ""
    """A rule of ``actors/protection/approval_rules.py``; the hook is invoked unless it is false."""
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
            case NatsHook():
                return f"nats:{self.spec.hook_id.as_str()}"
            case HttpHook():
                return f"http:{self.spec.hook_id.as_str()}"
            case ProgramHook(code=code, language=language):
                return f"sandbox:{digest_json([language, code])}"

    def digest(self) -> str:
        return digest_json(self)


# --- changes and lists ----------------------------------------------------------------------------


class ChangeHooks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change the hooks of the realm (verb ``hooks``, key ``_realm``). The change is one commit: if
    a part of it is refused, nothing is changed."""

    add: Annotated[tuple[HookRegistration, ...], Meta(max_length=HOOKS_MAX)] = ()
    """New hooks, and new forms of known ones."""
    modes: Annotated[dict[str, HookMode], Meta(max_length=HOOKS_MAX)] = {}
    """By id: the mode from now on."""
    remove: Annotated[tuple[str, ...], Meta(max_length=HOOKS_MAX)] = ()
    actor: Annotated[str, Meta(max_length=256)] = ""
    """The operator's name as the client sends it, unchecked."""


class HooksQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the hooks of a realm and of the node that answers (verb ``hooked``, key ``_realm``)."""

    hook: str | None = None
    """Only this one."""
    probe: bool = False
    """First try each executor outside of the node, without effects."""


class NotedAction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One thing that a hook did, or would have done, in a run."""

    at_ms: int
    session: str
    run: str
    text: str


class HookActivity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the journal says of a hook since it was registered in its present form, or ever, if it
    is of a node's registry. It says nothing of invocations that changed nothing."""

    since_ms: int = 0
    mode_since_ms: int = 0
    """When it got its mode."""
    changed: int = 0
    """Changes and refusals that were accepted."""
    refused: int = 0
    """Answers that the guard refused."""
    failed: int = 0
    would: int = 0
    """What it would have done if it were enforced, while it was audited."""
    last_ms: int = 0
    recent: tuple[NotedAction, ...] = ()
    """The last of what it would have done, failed at, or was refused."""


class ListedHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook, as the node that answers has it."""

    registration: HookRegistration
    sequence: int = 0
    """Number of the change that registered it in this form; 0 for one of the node's registry."""
    actor: str = ""
    """The operator who made that change."""
    digest: str
    """Of the registration; the runs that are bound to it name it."""
    problem: str = ""
    """Why this node cannot invoke it."""
    activity: HookActivity = HookActivity()


class HookList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``hooked``: in the order in which hooks of a point are invoked."""

    sequence: int = 0
    """Number of the last change."""
    hooks: tuple[ListedHook, ...] = ()


class HookReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``hooks``: the change is committed, and the node that answers has it."""

    sequence: int
    hooks: tuple[ListedHook, ...] = ()
    """Those that were added, or have another mode."""


# --- interrupted runs -----------------------------------------------------------------------------


class HookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section ``[hooks]`` of the configuration."""

    missing_wait_s: Annotated[float, Meta(gt=0, le=86_400)] = 60.0
    """How long a run waits on a node that lacks one of its hooks, for another node or for the hook;
    then one that has begun parks, and any other is refused."""


class ResumeRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Continue a run that a failed hook has interrupted; the hook is invoked again (verb
    ``hook_resume``, key: the run's session)."""

    run_id: str
    hook: Annotated[str, Meta(min_length=1, max_length=512)]
    """A run that another hook has interrupted stays as it is."""
    actor: Annotated[str, Meta(max_length=256)] = ""


class ResumeReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``hook_resume``."""

    run_id: str
    resumed: bool
    """Whether the run was interrupted by this hook until this command."""


# --- trials ---------------------------------------------------------------------------------------

TRIED_MAX = 200
"""Calls of one trial."""


class TriedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a hook is tried with."""

    session: str
    run_id: str
    call: RequestedCall
    outcome: CallOutcome | UnsetType = UNSET
    """For a hook of results."""


class HookTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Invoke a hook for calls, without effects (verb ``hook_trial``, key ``_realm``)."""

    hook: str = ""
    """A hook of the realm or of the node, or else ``registration``."""
    registration: HookRegistration | UnsetType = UNSET
    """One that need not be registered."""
    calls: Annotated[tuple[TriedCall, ...], Meta(max_length=TRIED_MAX)] = ()


class TrialVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook would have done at a call."""

    run_id: str
    operation_id: str
    name: str
    known: bool
    """Whether the node offers the tool; else no hook is invoked."""
    would: str = ""
    """Empty: nothing."""
    elapsed_ms: int


class HookTrialReport(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``hook_trial``: in the order of the calls."""

    hook_id: str
    verdicts: tuple[TrialVerdict, ...] = ()
