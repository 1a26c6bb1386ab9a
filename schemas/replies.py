"""Replies to commands and queries, and lists of runs and tools, a page at a time."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.agent_tools import AgentList
from rookery.schemas.agents import ConversationView
from rookery.schemas.approvals.lists import ApprovalList, GrantList
from rookery.schemas.approvals.records import DecisionReceipt
from rookery.schemas.calls import Capability
from rookery.schemas.envelope import FactClasses, InputSource
from rookery.schemas.hooks import HookList, HookReceipt, HookTrialReport, ResumeReceipt
from rookery.schemas.machines.lease import AuthLeasePhase, AuthStatusPhase
from rookery.schemas.machines.peer import PeerIngressAdmission
from rookery.schemas.machines.views import (
    ApprovalsReply,
    LeaseView,
    PeersReply,
    SurfacesReply,
    SurfacesView,
    TurnsReply,
)
from rookery.schemas.peers.exchanges import EnvelopeReceipt, ExchangeList, StreamView
from rookery.schemas.peers.gateways import CardSignature, PushReceipt
from rookery.schemas.peers.items import ResponderView
from rookery.schemas.peers.roster import RosterReceipt
from rookery.schemas.protection.policy import PolicyExplanation
from rookery.schemas.protection.rights import Rights, SessionRights
from rookery.schemas.resources import ResourceGrant, ResourceList, ResourcePiece
from rookery.schemas.run import ErrorObject, Language, RunResult, RunStatus, SessionMeta
from rookery.schemas.surfaces import CatalogueReceipt, SurfaceList

__all__ = [
    "REPLIES",
    "ApproverReceipt",
    "CallReceipt",
    "FileEntry",
    "FilesView",
    "ForkReceipt",
    "GrantReceipt",
    "LeaseList",
    "ListedLease",
    "QuarantineReceipt",
    "ReplayReport",
    "RevocationReceipt",
    "RunAnswer",
    "RunList",
    "RunReceipt",
    "RunState",
    "RunView",
    "RunWait",
    "SessionList",
    "SessionView",
    "SnapshotView",
    "ToolList",
    "ToolView",
    "UndoReceipt",
]

# --- lists ----------------------------------------------------------------------------------------

# Lists of runs and tools, a page at a time: replies to queries over many entities.
#
# ``actors/projections`` folds them from facts.


class RunState(StrEnum):
    """State of a run: in progress, waiting, or ended with a status."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    INTERRUPTED = "interrupted"
    """The run waits for the reason in its code; it has not ended."""
    OK = "ok"
    VALIDATION_ERROR = "validation_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PERMISSION_DENIED = "permission_denied"

    @property
    def is_end(self) -> bool:
        return self not in _UNFINISHED


_UNFINISHED: Final = (
    RunState.QUEUED,
    RunState.RUNNING,
    RunState.WAITING_FOR_APPROVAL,
    RunState.INTERRUPTED,
)


class RunWait(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for at present."""

    what: str
    since_ms: int
    who: str
    """The party that can end the wait."""
    command: str
    """The command that ends the wait."""
    operation_ids: tuple[str, ...] = ()
    """The calls the run waits for, if any."""
    may_act_until_ms: int | None = None
    """If the run waits for an operator: until then the tool may still act, and ``resolve`` requires
    ``now``."""
    until_ms: int | None = None
    """When a timer ends the wait, if one does."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run's present state."""

    run_id: str
    session_id: str
    status: RunState
    code: str | None = None
    """Code of the reason if the state is not ``ok`` and there is one."""
    language: Language
    created_at_ms: int
    started_at_ms: int | None = None
    ended_at_ms: int | None = None
    calls: int = 0
    """Number of calls the run has requested."""
    by: str | None = None
    """The credential that sent it, or ``unsigned``."""
    input_source: InputSource | UnsetType = UNSET
    """How its input came; missing if an older node accepted it."""
    waits_for: RunWait | None = None
    position: str
    """``<sequence>.<n>`` of the run's first fact; newer runs have higher positions."""
    agent: str | UnsetType = UNSET
    """The agent that it runs."""
    parent_run_id: str | UnsetType = UNSET
    """The run that has called the agent."""


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``runs``: newest first."""

    runs: tuple[RunView, ...] = ()
    next: str | None = None
    """Position of the next page (``before``), if the limit cut the list."""


class ListedLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of the realm; its credential is in no list."""

    lease: str
    phase: AuthLeasePhase | None
    """``None`` if it was released, or has never had a credential."""
    status: AuthStatusPhase
    login_required: bool
    expires_at: int | None
    """Unix seconds; ``None`` never expires."""
    generation: int
    published_at_ms: int | None
    waiting_calls: int
    logins: int
    """Logins in progress."""
    reason: str = ""
    """Why there is no newer credential."""
    retry_at_ms: int | None = None
    """When the next attempt begins."""
    may_be_lost: bool = False
    """Whether the refresh token may be used up: a refresh would use it a second time."""


class LeaseList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``leased``: by key."""

    leases: tuple[ListedLease, ...] = ()


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that this node offers."""

    surface: str
    """Who serves the tool: ``local`` for functions of the node, else a worker's name."""
    awaited: bool
    waits_for: str = ""
    """What its calls wait for, if they end by an event; they have no time limit then."""
    schema_digest: str
    capability: Capability


class ToolList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``tools``: by name."""

    tools: tuple[ToolView, ...] = ()


# --- replies --------------------------------------------------------------------------------------


class RunAnswer(RunResult, frozen=True, kw_only=True):
    """Result of a run that a node drives: the reply to ``run`` and to ``validate``.

    A result that is too large for a message is in the blob ``result_blob``, as a JSON
    ``RunResult``; the reply then has no value, streams, calls and diagnostics. Any node sends the
    blob in pieces to be concatenated, each the answer to an empty request on
    ``rookery.<realm>.read.blobs.<result_blob>.0``, ``.1``, and so on, as many as the header
    ``Rookery-Chunks`` of the first says. Its name is its SHA3-256.
    """

    run_id: str
    """Empty if the request executes nothing."""
    session_id: str
    result_blob: str | UnsetType = UNSET

    @classmethod
    def of(cls, result: RunResult, run_id: str, session_id: str) -> RunAnswer:
        return cls(**msgspec.structs.asdict(result), run_id=run_id, session_id=session_id)

    @classmethod
    def of_unstarted(cls, receipt: RunReceipt) -> RunAnswer:
        """The result of a run that never started, for clients that wait for one."""
        error = ErrorObject(code="CANCELLED", message=f"the run was {receipt.state}")
        status = RunStatus.CANCELLED
        if isinstance(receipt.error, ErrorObject):
            error, status = receipt.error, RunStatus.RUNTIME_ERROR
        result = RunResult.failed(status, error)
        return cls.of(result, receipt.run_id, receipt.session_id)


class RunReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of an input: the reply to ``cancel``, and to ``run`` where a client takes the turn's
    steps."""

    run_id: str
    input_id: str
    session_id: str
    state: str
    """``queued``, ``prepared``, ``committed``, ``failed``, ``rolled_back``, ``cancelled`` or
    ``refused``; the last five are terminal."""
    error: Any = None


class CallReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """State of a call: the reply to ``resolve`` and to ``wait_ended``."""

    run_id: str
    operation_id: str
    state: str
    """``completed``, ``failed``, ``requested`` (another attempt is due), ``intended`` (an attempt
    is in flight), ``awaited``, ``recovery_required``, or ``forgotten`` some time after its run."""


class GrantReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """State of a grant: the reply to ``grants``."""

    grant_id: str
    state: str
    """``issued``, ``consumed``, ``expired`` or ``revoked``."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A file or a folder of a session."""

    path: str
    size_bytes: int = 0
    folder: bool = False


class FilesView(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a session: the reply to ``files``. A folder has its files and folders, at any depth,
    and a file its content: ``data``, or ``blob`` if it is large, which is read like the blob of a
    large result."""

    session_id: str
    path: str
    files: tuple[FileEntry, ...] = ()
    cut: bool = False
    """Whether there are more."""
    digest: str | UnsetType = UNSET
    """SHA3-256 of the content."""
    data: bytes | UnsetType = UNSET
    """Base64 in JSON."""
    blob: str | UnsetType = UNSET


class ApproverReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The valid keys of an approver's name: the reply to ``approvers``."""

    name: str
    key_ids: tuple[str, ...] = ()
    changes: int = 0
    """Number of changes of the realm's approvers; the next change is signed with one more."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session's present state."""

    meta: SessionMeta
    phase: str
    generation: int
    current_run_id: str | None = None
    queue: tuple[RunReceipt, ...] = ()
    build: str | UnsetType = UNSET
    """Digest of the session's guest; only in the view of one session, after its first run."""
    rights: SessionRights | UnsetType = msgspec.field(default=UNSET, name="grants")
    """Unset if the session itself restricts nothing; revocations are facts of the realm."""
    classes: FactClasses | UnsetType = UNSET
    """Unset if the session has those of the realm."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``sessions``."""

    sessions: tuple[SessionView, ...] = ()
    total: int = 0
    """Number of sessions that match the query."""
    next: str | None = None
    """Position of the next page (``before``), if the limit cut the list."""


class SnapshotView(msgspec.Struct, frozen=True, kw_only=True):
    """A stored snapshot of a session's memory: the reply to ``snapshot`` and ``restore``."""

    session_id: str
    generation: int
    snapshot_id: str
    """``snap_`` and the digest of its blob."""
    size_bytes: int


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """Progress or result of a replay: the reply to ``replay``."""

    run_id: str
    session_id: str
    state: str
    """``replaying`` (repeat the query), ``equal`` or ``different``."""
    runs: int
    """Number of runs to execute: those of the session since its last snapshot, and this one."""
    runs_done: int = 0
    calls: int = 0
    """Number of the run's calls that got their recorded outcome."""
    compared: tuple[str, ...] = ()
    """The parts that were equal, in order of comparison."""
    difference: str | None = None
    """The first part that differed."""
    recorded: Any = None
    replayed: Any = None


class ForkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``fork``: the new session is committed and continues by itself."""

    session_id: str
    snapshot_id: str
    run_id: str | None = None
    """The run that continues in it; none if no run was in progress at the fork."""
    calls: int = 0
    """Number of that run's calls that are answered from the record."""
    at_sequence: int
    """Sequence of the boundary."""
    at_fact: int = 0
    """Number of the boundary's fact in that message."""
    messages: int = 0
    """Number of messages of the conversation that it begins with."""


class UndoReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``undo``: the session is as it was before a run."""

    session_id: str
    generation: int
    """The one that begins with that."""
    run_id: str
    """The oldest run that is undone."""
    messages: int
    """Number of messages of the conversation then."""


class QuarantineReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``quarantine``."""

    sequence: int
    entity: str
    """``<family>/<key>``"""
    code: str
    """Why the message is damaged."""
    digest: str
    """SHA3-256 of its body."""


class RevocationReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``revoke``: the revocation is on record."""

    session_id: str
    rights: Rights = msgspec.field(name="grants")


class LoginStarted(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``login``: what a person needs to log in."""

    flow_id: str
    url: str
    user_code: str = ""
    """Of a login by device code."""
    expires_at: int
    """Unix seconds."""
    interval_s: float = 0.0
    """How long to wait between two ``finish_login`` of a device login."""


class LoginStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``finish_login``."""

    done: bool = False
    """Whether the lease has the credential."""
    expires_at: int | None = None
    """Of the credential, in Unix seconds; ``None`` never expires."""
    reason: str = ""
    """Why the login is not done yet."""
    retry_after_s: float = 0.0


REPLIES: dict[str, Any] = {
    "run": RunAnswer | RunReceipt,
    "validate": RunAnswer,
    "cancel": RunReceipt,
    "resolve": CallReceipt,
    "admission": SessionView,
    "turns": TurnsReply,
    "surfaces": SurfacesReply,
    "leases": LeaseView,
    "peers": PeersReply,
    "approvals": ApprovalsReply,
    "decide": DecisionReceipt,
    "grants": GrantReceipt,
    "approval_due": DecisionReceipt,
    "wait_ended": CallReceipt,
    "child": SessionView,
    "lease_due": LeaseView,
    "lease_wait": LeaseView,
    "lease_rejected": LeaseView,
    "login": LoginStarted,
    "finish_login": LoginStatus,
    "leased": LeaseList,
    "catalogue": CatalogueReceipt,
    "catalogued": SurfaceList,
    "surface_due": SurfacesView,
    "hooks": HookReceipt,
    "hooked": HookList,
    "hook_trial": HookTrialReport,
    "hook_resume": ResumeReceipt,
    "approvers": ApproverReceipt,
    "roster": RosterReceipt,
    "envelope": PeerIngressAdmission,
    "send": EnvelopeReceipt,
    "respond": ResponderView,
    "event": EnvelopeReceipt,
    "peer_due": EnvelopeReceipt,
    "exchange": StreamView,
    "exchanges": ExchangeList,
    "push": PushReceipt,
    "sign_card": CardSignature,
    "pending": ApprovalList,
    "granted": GrantList,
    "session": SessionView,
    "sessions": SessionList,
    "runs": RunList,
    "tools": ToolList,
    "agents": AgentList,
    "policy": PolicyExplanation,
    "append": RunAnswer | RunReceipt,
    "context": RunAnswer | RunReceipt,
    "resources": ResourceList,
    "resource_resolve": ResourceGrant,
    "resource_read": ResourcePiece,
    "create": SessionView,
    "limits": SessionView,
    "revoke": RevocationReceipt,
    "snapshot": SnapshotView,
    "restore": SnapshotView,
    "destroy": SessionView,
    "files": FilesView,
    "replay": ReplayReport,
    "fork": ForkReceipt,
    "conversation": ConversationView,
    "undo": UndoReceipt,
    "quarantine": QuarantineReceipt,
}
"""The reply of every verb: a struct, or a union of structs."""
