"""What may be asked: the body of every verb. Unknown fields are refused.

``run`` takes a ``RunRequest``, and so does ``validate``, which executes nothing. Every handle
method of a machine is a ``HandleInput`` under its concern's verb; of one that only looks, no fact
is left.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.approvals.decision import DecideApproval, DecisionReceipt
from rookery.schemas.approvals.lists import (
    ApprovalList,
    GrantedQuery,
    GrantList,
    PendingQuery,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.integers import Unsigned
from rookery.schemas.lists import RunList, RunState, ToolList
from rookery.schemas.machines.views import (
    ApprovalsReply,
    LeaseView,
    PeersReply,
    SurfacesReply,
    TurnsReply,
)
from rookery.schemas.run import (
    ErrorObject,
    Language,
    Metrics,
    NonNegativeLimit,
    PositiveLimit,
    RunRequest,
    RunResult,
    RunStatus,
    SessionLimits,
    SessionMeta,
    StackDepth,
)

__all__ = [
    "COMMANDS",
    "REPLIES",
    "ApprovalDue",
    "ApproverReceipt",
    "CallReceipt",
    "Cancel",
    "ChangeApprover",
    "ChangeLimits",
    "CreateSession",
    "DecideApproval",
    "DecisionReceipt",
    "DestroySession",
    "ForkReceipt",
    "ForkRun",
    "GrantReceipt",
    "HandleInput",
    "ReplayQuery",
    "ReplayReport",
    "ResolveCall",
    "RestoreSession",
    "RevokeGrant",
    "RunAnswer",
    "RunReceipt",
    "RunsQuery",
    "SessionList",
    "SessionQuery",
    "SessionView",
    "SessionsQuery",
    "SnapshotSession",
    "SnapshotView",
    "ToolsQuery",
]

PageLimit = Annotated[int, Meta(ge=1, le=1_000)]
Actor = Annotated[str, Meta(max_length=256)]
"""Who says so, in their own words: nobody checks it. Empty: the id of the command stands for it."""


class HandleInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input of a machine, by the names of ``machines.md``."""

    input: str
    params: dict[str, Any] = {}


class Cancel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Withdraw an input that has not started, or ask the current run to end at its boundary."""

    run_id: str
    reason: str = ""
    now: bool = False
    """Do not wait for the current run's boundary, as the command line and ``Handle.cancel`` do not
    unless told to."""


class ResolveCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say what came of a call that nobody can know of (verb ``resolve``, key: its session).

    Exactly one of ``completed``, ``failed`` and ``retry``.
    """

    run_id: str
    operation_id: str
    completed: Any = UNSET
    """The value the program is given, ``null`` included."""
    failed: ToolFault | UnsetType = UNSET
    """The failure the program is given."""
    retry: bool = False
    """The tool is called again, whatever the last try did."""
    now: bool = False
    """Also while the tool may still act on the last attempt; else that is refused."""
    actor: Actor = ""


class RevokeGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Let a grant, of one call or of the session's, allow nothing more (verb ``grants``, key: its
    session)."""

    grant_id: str
    actor: Actor = ""


class ApprovalDue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timer of an approval has fired (verb ``approval_due``); nobody else may say so."""

    approval_id: str
    escalate: bool = False
    """Nobody has answered for a while; else its time is over."""


class ChangeApprover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Say whose key counts (verb ``approvers``, key: ``_approvers``). The first approver of a realm
    is taken as named, unless it has a root key; every later change an approver's key signs, or that
    one.

    With a key the approver is added, without one all keys of the name are revoked.
    """

    name: str
    public_key: str = ""
    """Ed25519, in hex."""
    change: Unsigned = 0
    """The how-manieth change of the realm's approvers this is, from 1: signed, it is made once."""
    key_id: str = ""
    """Of the approver's key it is signed with."""
    signature: str = ""
    """Ed25519 in hex, over everything else and the realm."""


class SessionQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask what a session is; leaves no fact."""


class CreateSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a session before its first run (verb ``create``). One that is there already, with the
    same language and limits, is left as it is."""

    language: Language = Language.PYTHON
    limits: SessionLimits = SessionLimits()
    """Of each of its runs that names none."""


class ChangeLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Give a session other limits, from its next run on (verb ``limits``). What is left out stays
    as it is."""

    memory_mb: PositiveLimit | UnsetType = UNSET
    cpu_ms: PositiveLimit | UnsetType = UNSET
    wall_ms: PositiveLimit | UnsetType = UNSET
    max_stdout_bytes: NonNegativeLimit | UnsetType = UNSET
    max_external_calls: NonNegativeLimit | UnsetType = UNSET
    max_stack_depth: StackDepth | UnsetType = UNSET

    def of(self, limits: SessionLimits) -> SessionLimits:
        """``limits``, so changed."""
        said = msgspec.structs.asdict(self).items()
        changed = {name: value for name, value in said if value is not UNSET}
        return msgspec.structs.replace(limits, **changed)


class SnapshotSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep a session as its last run has left it (verb ``snapshot``). None may be under way: the
    run would not be in it, and may wait for a person for days."""


class RestoreSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a session with the memory of a snapshot that is in the blob store (``restore``)."""

    snapshot_id: str
    replace: bool = False
    """If there is such a session, its life ends and the next one begins with the memory."""


class DestroySession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End a session's life (verb ``destroy``); the next input begins another one, with no memory
    of this. Refused while a run is under way."""


class ReplayQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask what a past run comes to today (verb ``replay``, key: its session); leaves no fact and
    calls no tool. Answered within a second or so: asked again, it goes on."""

    run_id: str


class ForkRun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Begin a session (the key of verb ``fork``) where an old run stood at a place of the journal:
    at the last boundary at which its calls had all been answered, or at its end."""

    run_id: str
    session: str
    """The old run's."""
    at_sequence: int


class SessionsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the realm's sessions (verb ``sessions``, any key); leaves no fact."""

    phase: str | None = None
    language: Language | None = None
    used_since_ms: int | None = None
    limit: PageLimit = 1_000
    before: str | None = None
    """``next`` of the page before."""


class RunsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the realm's runs (verb ``runs``, any key); leaves no fact."""

    run_id: str | None = None
    """Only this one."""
    session: str | None = None
    status: RunState | None = None
    language: Language | None = None
    since_ms: int | None = None
    """Created then or later."""
    until_ms: int | None = None
    """Created before."""
    limit: PageLimit = 100
    before: str | None = None
    """``next`` of the page before."""


class ToolsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the tools a node offers (verb ``tools``, any key); leaves no fact."""

    name: str | None = None
    """Only this one."""


class RunAnswer(RunResult, frozen=True, kw_only=True):
    """How a run ended: the answer to ``run`` where a node drives it, and to ``validate``.

    One that is too large for a message names its ``RunResult`` by ``result_blob``, and is without
    its value, streams, calls and diagnostics. The blob is JSON, and stands in the key-value bucket
    ``ROOKERY_<realm>_BLOBS`` in pieces to be put together: ``<result_blob>.0``, ``.1``, and so on,
    as many as the header ``Rookery-Chunks`` of the first says. Its SHA3-256 is its name.
    """

    run_id: str
    """Empty if nothing was to be executed."""
    session_id: str
    result_blob: str | UnsetType = UNSET

    @classmethod
    def of(cls, result: RunResult, run_id: str, session_id: str) -> RunAnswer:
        return cls(**msgspec.structs.asdict(result), run_id=run_id, session_id=session_id)

    @classmethod
    def of_unstarted(cls, receipt: RunReceipt) -> RunAnswer:
        """The end of a run that never started, as whoever waits for a result is told it."""
        error = ErrorObject(code="CANCELLED", message=f"the run was {receipt.state}")
        status = RunStatus.CANCELLED
        if isinstance(receipt.error, ErrorObject):
            error, status = receipt.error, RunStatus.RUNTIME_ERROR
        result = RunResult.failed(status, error, "", Metrics())
        return cls.of(result, receipt.run_id, receipt.session_id)


class RunReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How far an input has come: the answer to ``cancel``, and to ``run`` where nobody here drives
    it."""

    run_id: str
    input_id: str
    session_id: str
    state: str
    """``queued``, ``prepared``, ``committed``, ``failed``, ``rolled_back``, ``cancelled`` or
    ``refused``; the last five are terminal."""
    error: Any = None


class CallReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How a call stands: the answer to ``resolve``."""

    run_id: str
    operation_id: str
    state: str
    """``completed``, ``failed``, ``requested`` (it is tried again), ``intended`` (it is being
    tried), ``recovery_required``, or ``forgotten`` some time after its run."""


class GrantReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """How a grant stands: the answer to ``grants``."""

    grant_id: str
    state: str
    """``issued``, ``consumed``, ``expired`` or ``revoked``."""


class ApproverReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that count for a name: the answer to ``approvers``."""

    name: str
    key_ids: tuple[str, ...] = ()
    changes: int = 0
    """How many changes of the realm's approvers there were: the next is signed as one more."""


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session as it stands."""

    meta: SessionMeta
    phase: str
    generation: int
    current_run_id: str | None = None
    queue: tuple[RunReceipt, ...] = ()
    build: str | UnsetType = UNSET
    """Digest of the guest it stays on, where one session is looked at and its programs ran."""


class SessionList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``sessions``."""

    sessions: tuple[SessionView, ...] = ()
    total: int = 0
    """How many there are of those that were asked for."""
    next: str | None = None
    """Where to go on (``before``), should the limit have cut the list."""


class SnapshotView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session's memory stands: the answer to ``snapshot`` and ``restore``."""

    session_id: str
    generation: int
    snapshot_id: str
    """``snap_`` and the digest by which the blob store has it."""
    size_bytes: int


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a replay: the answer to ``replay``."""

    run_id: str
    session_id: str
    state: str
    """``replaying`` (ask again), ``equal`` or ``different``."""
    runs: int
    """How many are run again: those of the session since its last snapshot before, and this."""
    runs_done: int = 0
    calls: int = 0
    """How many calls of the run were told what they were told before."""
    compared: tuple[str, ...] = ()
    """What was the same, in the order in which it was looked at."""
    difference: str | None = None
    """The first thing that was not the same."""
    recorded: Any = None
    replayed: Any = None


class ForkReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``fork``: the new session stands, and goes on by itself."""

    session_id: str
    snapshot_id: str
    run_id: str | None = None
    """The run that goes on in it; none if it was forked where no run was under way."""
    calls: int = 0
    """How many calls that run is told the old answers of."""
    at_sequence: int
    """The boundary."""


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
    "approvers": ChangeApprover,
    "pending": PendingQuery,
    "granted": GrantedQuery,
    "session": SessionQuery,
    "sessions": SessionsQuery,
    "runs": RunsQuery,
    "tools": ToolsQuery,
    "create": CreateSession,
    "limits": ChangeLimits,
    "snapshot": SnapshotSession,
    "restore": RestoreSession,
    "destroy": DestroySession,
    "replay": ReplayQuery,
    "fork": ForkRun,
}

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
    "approvers": ApproverReceipt,
    "pending": ApprovalList,
    "granted": GrantList,
    "session": SessionView,
    "sessions": SessionList,
    "runs": RunList,
    "tools": ToolList,
    "create": SessionView,
    "limits": SessionView,
    "snapshot": SnapshotView,
    "restore": SnapshotView,
    "destroy": SessionView,
    "replay": ReplayReport,
    "fork": ForkReceipt,
}
"""What a verb answers where it is not refused: a struct, or a union of them."""
