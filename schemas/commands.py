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
    GrantedQuery,
    PendingQuery,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.integers import PageLimit, Unsigned
from rookery.schemas.lists import RunState
from rookery.schemas.run import (
    Language,
    NonNegativeLimit,
    PositiveLimit,
    RunRequest,
    SessionLimits,
    StackDepth,
)

__all__ = [
    "COMMANDS",
    "ApprovalDue",
    "Cancel",
    "ChangeApprover",
    "ChangeLimits",
    "CreateSession",
    "DecideApproval",
    "DecisionReceipt",
    "DestroySession",
    "ForkRun",
    "HandleInput",
    "ReplayQuery",
    "ResolveCall",
    "RestoreSession",
    "RevokeGrant",
    "RunsQuery",
    "SessionQuery",
    "SessionsQuery",
    "SnapshotSession",
    "ToolsQuery",
]

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
