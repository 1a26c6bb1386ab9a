"""Facts of the family ``sandbox``: which snapshots of a session's memory are stored.

A snapshot has the effects of all runs before it. To restore a session, a node loads the snapshot
and executes the later runs again.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType, field

from rookery.schemas.agents import ConversationOrigin
from rookery.schemas.calls import ForkedRun, ForkPoint
from rookery.schemas.envelope import Fact, FactClasses, HistoryRestart
from rookery.schemas.protection.rights import Rights
from rookery.schemas.run import Language, RunRequest, SessionLimits
from rookery.schemas.scalars import Unsigned

__all__ = ["SANDBOX_FACTS", "SandboxFact"]


class SnapshotKept(Fact, frozen=True, kw_only=True, tag="sandbox.snapshot_kept.v1"):
    """A session's memory is in the blob store."""

    snapshot_id: str
    blob: str
    """Digest of the sealed snapshot."""
    language: Language
    build: str
    after_sequence: Unsigned
    """Sequence of the last fact of the last turn that the snapshot contains."""
    size_bytes: Unsigned
    limits: SessionLimits | UnsetType = UNSET
    """The session's limits, unless they are the defaults; a restored session has them."""
    replaceable: bool | UnsetType = UNSET
    """Whether the blob is deleted when the session has a newer snapshot."""


class SnapshotRestored(Fact, frozen=True, kw_only=True, tag="sandbox.snapshot_restored.v1"):
    """This generation begins with the memory of a snapshot, from this or from another session. The
    fact opens the session; ``run``, if set, is its first run."""

    snapshot_id: str
    blob: str
    language: Language
    build: str
    after_sequence: Unsigned
    """Sequence of the last fact of the session that the restore discards."""
    size_bytes: Unsigned
    asked_by: str
    """Id of the command that requested the restore; a duplicate of it changes nothing."""
    forked_from: ForkPoint | UnsetType = UNSET
    """The session and run the memory is from, if the snapshot was made for a fork."""
    forked: ForkedRun | UnsetType = UNSET
    """Where ``run`` continues another run."""
    request: RunRequest | UnsetType = UNSET
    """Request of ``run``."""
    request_blob: str | UnsetType = UNSET
    """See ``session.input_accepted``."""
    limits: SessionLimits | UnsetType = UNSET
    """The session's limits from now on, unless they are the defaults."""
    rights: tuple[Rights, ...] | UnsetType = field(default=UNSET, name="grants")
    """Those of the session that the memory is from; a fork adds those of its run."""
    descends_from: tuple[str, ...] | UnsetType = UNSET
    """See ``session.rights_narrowed``."""
    classes: FactClasses | UnsetType = UNSET
    """Of the session that the memory is from, if it has some."""
    conversation: ConversationOrigin | UnsetType = UNSET
    """The conversation that the generation begins with; unset if it is empty."""


class HistoryRestarted(
    HistoryRestart, frozen=True, kw_only=True, tag="sandbox.history_restarted.v1"
):
    """All earlier snapshots are void."""


SandboxFact = SnapshotKept | SnapshotRestored | HistoryRestarted
SANDBOX_FACTS = SandboxFact
