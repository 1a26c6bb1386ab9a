"""Calls: the declaration of what a program may call, and the calls as turns and tools exchange
them.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.agents import ModelEnvironment
from rookery.schemas.protection.policy import RuleDecision
from rookery.schemas.protection.rights import RightsSet
from rookery.schemas.run import Language, SessionLimits, SideEffect
from rookery.schemas.seed.policies import CapabilityPermission
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, RiskClass

__all__ = [
    "CODE_SURFACE",
    "LEASE_REAUTH_REQUIRED",
    "LEASE_WAITS",
    "RECOVERY_REQUIRED",
    "WAITING_FOR_AGENT",
    "WAITING_FOR_APPROVAL",
    "WAITING_FOR_LEASE",
    "WAITING_FOR_PEER",
    "WAITING_FOR_TASK",
    "WAITING_FOR_TIMER",
    "ApprovalMode",
    "ApprovalPolicy",
    "ApprovalTerms",
    "AutoApproval",
    "AutoRule",
    "AvailableTool",
    "CallArguments",
    "CallOutcome",
    "Capability",
    "CapabilityLimits",
    "ForkPoint",
    "ForkedRun",
    "OfferedSurface",
    "PinnedHook",
    "RecordMode",
    "RequestedCall",
    "RunEnvironment",
    "ToolFault",
    "VisibleSurfaces",
    "is_python_identifier",
]

# Why a call waits: in its facts, and the code of its run's interim result.
RECOVERY_REQUIRED: Final = "RECOVERY_REQUIRED"
WAITING_FOR_AGENT: Final = "WAITING_FOR_AGENT"
WAITING_FOR_APPROVAL: Final = "WAITING_FOR_APPROVAL"
WAITING_FOR_TIMER: Final = "WAITING_FOR_TIMER"
WAITING_FOR_PEER: Final = "WAITING_FOR_PEER"
WAITING_FOR_LEASE: Final = "WAITING_FOR_LEASE"
WAITING_FOR_TASK: Final = "WAITING_FOR_TASK"
LEASE_REAUTH_REQUIRED: Final = "LEASE_REAUTH_REQUIRED"
CODE_SURFACE: Final = "sandbox"
"""Of calls of ``run_code``: the driver of their run executes them."""
LEASE_WAITS: Final = (WAITING_FOR_LEASE, LEASE_REAUTH_REQUIRED)
"""The waits for a fresh credential, without a login and with one."""


# --- calls ----------------------------------------------------------------------------------------

# A program's calls as turns and tools exchange them, and the environment of a run.


class AvailableTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a program sees it."""

    name: str
    schema_digest: str = ""
    side_effect: SideEffect = SideEffect.NONE
    awaited: bool = False
    """Whether programs await the tool; calls awaited together are made together."""
    hidden: bool | UnsetType = UNSET
    """Whether the run has no right to any call of it, so that ``list_tools()`` leaves it out."""
    decision: RuleDecision | UnsetType = UNSET
    """What the policy decides about every call of it, if it does not allow them."""


class OfferedSurface(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A surface of a catalogue, with the tools it had at a change of that catalogue."""

    surface: str
    tools: str
    """Digest of the JSON list of ``SurfaceTool``, in the blob store."""
    sequence: int = 0
    """Number of the change of the catalogue that added or reloaded the surface."""
    only: str = ""
    """The session that alone sees the surface; empty: all sessions do."""
    kind: str = ""
    """A ``SurfaceKind``; empty in lists of older versions."""


class VisibleSurfaces(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The surfaces of catalogues that a run sees, whatever changes later."""

    lists: tuple[str, ...] = ()
    """Digests of JSON lists of ``OfferedSurface``, in the blob store."""
    session: str = ""
    """The session that sees surfaces of its own among them; empty if it has none."""
    catalogued: int = 0
    """Number of the last change of the realm's catalogue."""
    without: tuple[str, ...] = ()
    """Surfaces of the lists that the session was removing."""
    by_mention: bool = False
    """Whether a guest has a name only once a program of its session mentions it."""
    pending: tuple[str, ...] = ()
    """Surfaces to which the node was not connected when the run started: ``list_tools()`` says so,
    and calls wait for the connection."""
    rights: RightsSet = msgspec.field(default=(), name="grants")
    """What the run could reach when it started: ``list_tools()`` shows no other tools."""


class PinnedHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook of a run, as it was registered when the run started."""

    hook_id: str
    digest: str
    """Of the registration."""
    retries: bool | UnsetType = UNSET
    """Set if it may ask for one more attempt of a call."""


class RunEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of its node that a run depends on."""

    language: Language
    build: str
    """Digest of the guest that executes the run."""
    seed: str
    """Hex; a session takes all its randomness from its first run's seed."""
    limits: SessionLimits
    """Limits of the run."""
    session_limits: SessionLimits | UnsetType = UNSET
    """The session's limits when the run started, unless they are the defaults."""
    tools: tuple[AvailableTool, ...] = ()
    catalogue: str = ""
    """Digest of the JSON list of declared tools, in the blob store."""
    surfaces: VisibleSurfaces | UnsetType = UNSET
    """The tools of surfaces, beside ``tools``; unset if no catalogue has any."""
    hooks: tuple[PinnedHook, ...] | UnsetType = UNSET
    """Unset if there are none."""
    policy: str | UnsetType = UNSET
    """Digest of the policy of its calls, in the blob store; unset for the default one."""
    package_fingerprint: str | UnsetType = UNSET
    """Of tools, hooks, policy and guest; unset in facts of older versions."""
    model: ModelEnvironment | UnsetType = UNSET
    """Set if a model drives the run, instead of a program."""


class ForkPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The point in an old session at which a fork continues."""

    session: str
    generation: int
    run_id: str
    """The run in progress at that point, or the last one before it."""
    calls: int = 0
    """Number of its calls that had an outcome."""
    at_sequence: int
    """Sequence of the last fact the fork takes over."""
    at_fact: int = 0
    """Its number in the message; 0 in facts of older versions, which took whole messages over."""


class ForkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that continues another run: first it replays the outcomes of that one's calls."""

    of: ForkPoint
    begun_at_ms: int
    """Start of the other run, which is the start that this run's program sees."""
    offer: RunEnvironment
    """Environment of the other run; in a different one the program might not reach the fork."""
    batches: int
    """Number of batches in which the other run's calls got their outcomes."""
    known_blob: str
    """Digest of the JSON list of those batches (lists of calls) in the blob store."""
    waits: dict[int, int] | UnsetType = UNSET
    """By the number of a call, until when (in milliseconds since 1970) it waited in the other
    run."""


class CallArguments(msgspec.Struct, frozen=True, kw_only=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class RequestedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a driver requested."""

    operation_id: str
    number: int
    """Number of the call in its run, from 1."""
    name: str
    digest: str
    """SHA3-256 of the canonical ``{"args", "kwargs"}``."""
    awaited: bool = False
    arguments: CallArguments | UnsetType = UNSET
    arguments_blob: str | UnsetType = UNSET
    """Digest of the arguments in the blob store, if they are too large for a fact."""


class ToolFault(msgspec.Struct, frozen=True):
    """A failure as the program sees it: an exception with this code."""

    code: str
    message: str


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call: a value, here or in the blob store, or an error."""

    value: Any = None
    value_blob: str | UnsetType = UNSET
    error: ToolFault | UnsetType = UNSET
    duration_ms: int = 0
    sealed: bool | UnsetType = UNSET
    """Whether the value is sensitive, and so a ``SealedValue`` here."""


# --- capability -----------------------------------------------------------------------------------

# Seed 000: the declaration of a function that a host offers to programs. Names are the contract.
#
# Every field is written.


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


class ApprovalTerms(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Terms of an approval that hooks have made stricter; unset ones are the realm's."""

    timeout_ms: int | UnsetType = UNSET
    """The realm's applies if it is shorter."""
    dispatchers: tuple[str, ...] | UnsetType = UNSET
    """Of those of the realm, only these are used."""
    risk_class: RiskClass | UnsetType = UNSET
    """The risk of the call is at least this."""


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
    permissions: tuple[CapabilityPermission, ...] | UnsetType = UNSET
    """Not in the seed. What its calls need the policy's permission for; unset: it is not known."""
    risk: RiskClass | UnsetType = UNSET
    """Not in the seed. Of its calls, as approvers see it; unset: by the side effect."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    """Not in the seed. The decisions that approvers of its calls may take; unset: all."""

    @property
    def only_reads(self) -> bool:
        """Whether its calls have no effect."""
        return self.side_effect in (SideEffect.NONE, SideEffect.READ)


def is_python_identifier(name: str) -> bool:
    """Whether programs can call a capability by this name. ASCII only; keywords pass, as in the
    contract."""
    return bool(_IDENTIFIER.fullmatch(name))
