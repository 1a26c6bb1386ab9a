"""The body of every verb. Unknown fields are refused.

``run`` and ``validate`` take a ``RunRequest``; ``validate`` executes nothing. A handle method of a
machine is a ``HandleInput`` under its decider's verb; a read leaves no fact.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.agent_tools import AgentsQuery, RunChild
from rookery.schemas.agents import MESSAGE_BYTES_MAX, ModelUsage
from rookery.schemas.approvals.lists import GrantedQuery, PendingQuery
from rookery.schemas.approvals.records import DecideApproval, DecisionReceipt
from rookery.schemas.calls import CallOutcome, ToolFault
from rookery.schemas.envelope import FactClasses, InputSource
from rookery.schemas.hooks import ChangeHooks, HooksQuery, HookTrial, ResumeRun
from rookery.schemas.peers.envelope import Envelope
from rookery.schemas.peers.exchanges import ExchangesQuery, FollowExchange, PeerDue, SendEnvelope
from rookery.schemas.peers.gateways import ChangePushTarget, SignCard
from rookery.schemas.peers.items import PublishEvent, SetResponder
from rookery.schemas.peers.roster import NamePeer
from rookery.schemas.protection.policy import ExplainPolicy
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import RunState
from rookery.schemas.resources import ReadResource, ResolveResource, ResourcesQuery
from rookery.schemas.run import (
    Language,
    NonNegativeLimit,
    PositiveLimit,
    RunRequest,
    SessionLimits,
    StackDepth,
)
from rookery.schemas.scalars import PageLimit, Unsigned
from rookery.schemas.surfaces import CatalogueQuery, ChangeCatalogue, SurfaceDue

__all__ = [
    "AUDIENCES",
    "COMMANDS",
    "INTERNAL_VERBS",
    "SIGNED_VERBS",
    "AppendMessage",
    "ApprovalDue",
    "Audience",
    "Cancel",
    "ChangeApprover",
    "ChangeLimits",
    "ConversationQuery",
    "CreateSession",
    "DecideApproval",
    "DecisionReceipt",
    "DestroySession",
    "FilesQuery",
    "FinishLogin",
    "ForkRun",
    "HandleInput",
    "LeaseDue",
    "LeaseRejected",
    "LeaseWait",
    "LeasesQuery",
    "NamePeer",
    "QuarantineMessage",
    "ReplayQuery",
    "ResolveCall",
    "RestoreSession",
    "RevokeGrant",
    "RevokeRights",
    "RunsQuery",
    "SessionQuery",
    "SessionsQuery",
    "SetContext",
    "SnapshotSession",
    "StartLogin",
    "ToolsQuery",
    "UndoRuns",
    "WaitEnded",
    "audience_of",
]

Actor = Annotated[str, Meta(max_length=256)]
"""The actor's name as the client sends it, unchecked. Empty: the id of the command is recorded."""


class HandleInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of a machine, with the names of ``machines.md``."""

    input: str
    params: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Withdraw an input that has not started, or ask the current run to end at its boundary."""

    run_id: str
    reason: str = ""
    now: bool = False
    """End the current run before its boundary. Off by default, also in the command line and in
    ``Handle.cancel``."""


class ResolveCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resolve a call whose outcome is unknown (verb ``resolve``, key: its session).

    Exactly one of ``completed``, ``failed`` and ``retry``.
    """

    run_id: str
    operation_id: str
    completed: Any = UNSET
    """Value for the program, ``null`` included."""
    failed: ToolFault | UnsetType = UNSET
    """Failure for the program."""
    retry: bool = False
    """Make another attempt, whatever the last one did."""
    now: bool = False
    """Resolve although the tool may still act on the last attempt; without it that is refused."""
    actor: Actor = ""


class RevokeGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Revoke a grant of a call or of the session (verb ``grants``, key: its session). Where keys
    are required, an approver signs it."""

    grant_id: str
    actor: Actor = ""
    """With a key, the name the key was added under."""
    key_id: str = ""
    signature: str = ""
    """Ed25519 over the other fields and the realm, in hex."""


class ApprovalDue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timer of an approval has fired (verb ``approval_due``); only the node's timers send it."""

    approval_id: str
    escalate: bool = False
    """Escalate the unanswered request; without it the request expires."""


class WaitEnded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The event that an awaited call waits for has happened (verb ``wait_ended``, key: its
    session). Only timers and the session's node send it."""

    operation_id: str
    code: str
    """What the call waited for; a call that waits for something else is not ended."""
    outcome: CallOutcome = CallOutcome()
    """The outcome of the call; one that waits for a credential has none yet, and is made now."""
    waits_for: str = ""
    """What the call waits for instead from now on; empty if its wait ends."""
    usage: ModelUsage | UnsetType = UNSET
    """Of the run of an agent that the call has waited for."""


class LeaseDue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credential of a lease expires soon, or its next refresh is due (verb ``lease_due``, key:
    the lease's). Only timers send it."""

    credential: Unsigned
    """The generation of the credential; the timer of an older one does nothing."""


class LeaseWait(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call waits for a fresh credential, or no longer does (verb ``lease_wait``, key: the
    lease's). Only the node of the call's session sends it."""

    session: str
    operation_id: str
    withdrawn: bool = False


class LeaseRejected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server refused a credential that is fresh by its time (verb ``lease_rejected``, key: the
    lease's). Only the node of the call's session sends it."""

    credential: Unsigned
    """Its generation."""


class StartLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a login (verb ``login``, key: the lease's), which ends with ``finish_login``."""

    redirect_uri: Annotated[str, Meta(max_length=2_000)] = ""
    """Where the browser is to return to, on the machine of the person; empty for a login by a code
    that is confirmed on another device."""


class FinishLogin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Complete a login, or ask once whether it was confirmed on the other device (verb
    ``finish_login``, key: the lease's)."""

    flow_id: str
    query: Annotated[str, Meta(max_length=10_000)] = ""
    """The query with which the browser returned; no fact or log has it."""


class LeasesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the realm's leases (verb ``leased``, any key)."""

    lease: str | None = None
    """Only this one."""


class ChangeApprover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add an approver's key, or revoke all keys of a name if there is none (verb ``approvers``,
    key: ``_approvers``).

    A realm without a root key accepts its first approver unsigned. The root key or an approver's
    key signs every other change.
    """

    name: str
    public_key: str = ""
    """Ed25519, in hex."""
    change: Unsigned = 0
    """Number of this change among the realm's changes, from 1; a signed change applies once."""
    key_id: str = ""
    """Id of the key that signed the change."""
    signature: str = ""
    """Ed25519 in hex, over the other fields and the realm."""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read a session's state."""


class CreateSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create a session before its first run (verb ``create``). An existing session with the same
    language and limits stays as it is."""

    language: Language = Language.PYTHON
    limits: SessionLimits = SessionLimits()
    """Limits of its runs that name none."""
    rights: Rights | UnsetType = msgspec.field(default=UNSET, name="grants")
    """What its runs may call; a session has them in all its generations."""
    classes: FactClasses | UnsetType = UNSET
    """What its facts claim at least, in all its generations."""


class ChangeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change a session's limits from its next run on (verb ``limits``). Absent fields keep their
    value."""

    memory_mb: PositiveLimit | UnsetType = UNSET
    cpu_ms: PositiveLimit | UnsetType = UNSET
    wall_ms: PositiveLimit | UnsetType = UNSET
    max_stdout_bytes: NonNegativeLimit | UnsetType = UNSET
    max_external_calls: NonNegativeLimit | UnsetType = UNSET
    max_stack_depth: StackDepth | UnsetType = UNSET
    rights: Rights | UnsetType = msgspec.field(default=UNSET, name="grants")
    """Rights that apply beside those the session has, at once; nothing gives rights back."""
    classes: FactClasses | UnsetType = UNSET
    """What its facts claim at least from now on; nothing lowers the privacy again."""

    def of(self, limits: SessionLimits) -> SessionLimits:
        """``limits`` with this change applied."""
        changed = {
            name: value
            for name in SessionLimits.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        return msgspec.structs.replace(limits, **changed)


MessageText = Annotated[str, Meta(min_length=1, max_length=MESSAGE_BYTES_MAX)]


class AppendMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add a message to a session's conversation (verb ``append``); no model is asked."""

    text: MessageText
    role: Literal["user", "system"] = "user"


class SetContext(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Add a message to a session's conversation that replaces the older one of its key (verb
    ``context``); no model is asked. A session has at most 256 keys."""

    context_key: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,128}\Z")]
    text: MessageText


class ConversationQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the messages that the next question to a session's model would have, with their sizes
    (verb ``conversation``)."""


class UndoRuns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Put a session back to before its last runs (verb ``undo``): its next generation begins with
    the memory and the conversation of then. Nothing is deleted. Refused while a run is in progress,
    and where tools of these runs have acted."""

    runs: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """How many."""
    force: bool = False
    """Also where tools have acted; that is not undone."""


class RevokeRights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take rights from a session and from every session that is or will be forked or restored from
    it (verb ``revoke``). It applies to the next call, also of a run in progress."""

    rights: Rights = msgspec.field(name="grants")
    """What is left; rights that apply already still do."""
    reason: Annotated[str, Meta(max_length=500)] = ""
    actor: Actor = ""


class SnapshotSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Store a snapshot of a session after its last run (verb ``snapshot``). Refused while a run is
    in progress: the snapshot would not contain it, and the run may wait for days."""


class RestoreSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a session with the memory of a stored snapshot (verb ``restore``)."""

    snapshot_id: str
    replace: bool = False
    """End the session's generation if it exists; the next one begins with the memory."""


class DestroySession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a session's generation (verb ``destroy``); the next input begins another one with an
    empty memory. Refused while a run is in progress."""


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read a file of a session, or list a folder and all below it (verb ``files``), as the last
    ended run left them. A run writes and removes files: ``RunRequest.files``."""

    path: str = "/work"
    """Absolute, or relative to ``/work``."""


class ReplayQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Execute a past run again and compare (verb ``replay``, key: its session). It leaves no fact
    and calls no tool. The reply comes within about a second; repeat the query to continue."""

    run_id: str


class ForkRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a session (key of verb ``fork``) with the state of an old run at a point of the
    journal: at the last boundary at which all its calls had outcomes, or at its end."""

    run_id: str
    session: str
    """Session of the old run."""
    at_sequence: int
    at_fact: int | UnsetType = UNSET
    """Number of a fact in that message, from 1; unset: the last one."""
    rights: Rights | UnsetType = msgspec.field(default=UNSET, name="grants")
    """Rights of the new session beside those of the old run."""


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the realm's sessions (verb ``sessions``, any key)."""

    phase: str | None = None
    language: Language | None = None
    used_since_ms: int | None = None
    limit: PageLimit = 1_000
    before: str | None = None
    """``next`` of the previous page."""


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the realm's runs (verb ``runs``, any key)."""

    run_id: str | None = None
    """Only this run."""
    parent: str | None = None
    """Only the children of this run."""
    session: str | None = None
    status: RunState | None = None
    language: Language | None = None
    input_source: InputSource | None = None
    since_ms: int | None = None
    """Created at this time or later."""
    until_ms: int | None = None
    """Created before this time."""
    limit: PageLimit = 100
    before: str | None = None
    """``next`` of the previous page."""


class ToolsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the tools a node offers (verb ``tools``, any key)."""

    name: str | None = None
    """Only this tool."""


class QuarantineMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let every reader skip a damaged message of the journal (verb ``quarantine``, any key)."""

    sequence: Annotated[int, msgspec.Meta(ge=1)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    actor: Actor = ""
    confirm: str = ""
    """The message's entity; required if the entity can be used although the message is damaged."""


COMMANDS: dict[str, type[msgspec.Struct]] = {
    "run": RunRequest,
    "validate": RunRequest,
    "cancel": Cancel,
    "resolve": ResolveCall,
    "admission": HandleInput,
    "turns": HandleInput,
    "surfaces": HandleInput,
    "leases": HandleInput,
    "peers": HandleInput,
    "approvals": HandleInput,
    "decide": DecideApproval,
    "grants": RevokeGrant,
    "approval_due": ApprovalDue,
    "wait_ended": WaitEnded,
    "child": RunChild,
    "lease_due": LeaseDue,
    "lease_wait": LeaseWait,
    "lease_rejected": LeaseRejected,
    "login": StartLogin,
    "finish_login": FinishLogin,
    "leased": LeasesQuery,
    "catalogue": ChangeCatalogue,
    "catalogued": CatalogueQuery,
    "surface_due": SurfaceDue,
    "hooks": ChangeHooks,
    "hooked": HooksQuery,
    "hook_trial": HookTrial,
    "hook_resume": ResumeRun,
    "approvers": ChangeApprover,
    "roster": NamePeer,
    "envelope": Envelope,
    "send": SendEnvelope,
    "respond": SetResponder,
    "event": PublishEvent,
    "peer_due": PeerDue,
    "exchange": FollowExchange,
    "exchanges": ExchangesQuery,
    "push": ChangePushTarget,
    "sign_card": SignCard,
    "pending": PendingQuery,
    "granted": GrantedQuery,
    "session": SessionQuery,
    "sessions": SessionsQuery,
    "runs": RunsQuery,
    "tools": ToolsQuery,
    "agents": AgentsQuery,
    "policy": ExplainPolicy,
    "append": AppendMessage,
    "context": SetContext,
    "resources": ResourcesQuery,
    "resource_resolve": ResolveResource,
    "resource_read": ReadResource,
    "create": CreateSession,
    "limits": ChangeLimits,
    "revoke": RevokeRights,
    "snapshot": SnapshotSession,
    "restore": RestoreSession,
    "destroy": DestroySession,
    "files": FilesQuery,
    "replay": ReplayQuery,
    "fork": ForkRun,
    "conversation": ConversationQuery,
    "undo": UndoRuns,
    "quarantine": QuarantineMessage,
}


class Audience(StrEnum):
    """A group of verbs that the same roles may send."""

    PUBLIC = "public"
    """Runs and their sessions."""
    QUERY = "query"
    """Reads without a fact."""
    APPROVER = "approver"
    OPERATOR = "operator"
    MACHINE = "machine"
    """Inputs of machines, which a node refuses for what it drives itself."""
    GATEWAY = "gateway"
    """What only gateways to other protocols need."""
    PEER = "peer"
    """Durable commands that prove their sender by themselves."""
    NODE = "node"
    """Sent by timers, and by nodes to themselves."""


SIGNED_VERBS: Final = frozenset({"envelope"})
"""Commands whose body is signed by the key of their sender, whatever the credential."""

AUDIENCES: Final[dict[Audience, tuple[str, ...]]] = {
    Audience.PUBLIC: (
        "run",
        "validate",
        "cancel",
        "append",
        "context",
        "create",
        "limits",
        "snapshot",
        "restore",
        "destroy",
        "files",
        "resource_resolve",
        "resource_read",
        "replay",
        "fork",
        "conversation",
        "undo",
        "send",
        "exchange",
        "respond",
        "event",
    ),
    Audience.QUERY: (
        "session",
        "sessions",
        "runs",
        "tools",
        "agents",
        "policy",
        "catalogued",
        "hooked",
        "resources",
        "pending",
        "granted",
        "leased",
        "exchanges",
    ),
    Audience.APPROVER: ("decide",),
    Audience.OPERATOR: (
        "resolve",
        "approvers",
        "roster",
        "grants",
        "quarantine",
        "revoke",
        "login",
        "finish_login",
        "catalogue",
        "hooks",
        "hook_trial",
        "hook_resume",
    ),
    Audience.MACHINE: ("admission", "turns", "surfaces", "leases", "peers", "approvals"),
    Audience.GATEWAY: ("push", "sign_card"),
    Audience.PEER: tuple(sorted(SIGNED_VERBS)),
    Audience.NODE: (
        "approval_due",
        "wait_ended",
        "child",
        "lease_due",
        "lease_wait",
        "lease_rejected",
        "peer_due",
        "surface_due",
    ),
}
"""Every verb of ``COMMANDS``, in one group."""


def audience_of(verb: str) -> Audience:
    """The group of a verb."""
    return next(audience for audience, verbs in AUDIENCES.items() if verb in verbs)


INTERNAL_VERBS: Final = frozenset(AUDIENCES[Audience.NODE])
"""Verbs that only timers send. For every client they do not exist: a node refuses them as it
refuses an unknown verb, and no list of verbs has them."""
