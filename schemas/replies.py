"""What commands and queries are answered with."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.approvals.decision import DecisionReceipt
from rookery.schemas.approvals.lists import (
    ApprovalList,
    GrantList,
)
from rookery.schemas.lists import RunList, ToolList
from rookery.schemas.machines.views import (
    ApprovalsReply,
    LeaseView,
    PeersReply,
    SurfacesReply,
    TurnsReply,
)
from rookery.schemas.run import (
    ErrorObject,
    Metrics,
    RunResult,
    RunStatus,
    SessionMeta,
)

__all__ = [
    "REPLIES",
    "ApproverReceipt",
    "CallReceipt",
    "ForkReceipt",
    "GrantReceipt",
    "ReplayReport",
    "RunAnswer",
    "RunReceipt",
    "SessionList",
    "SessionView",
    "SnapshotView",
]


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
