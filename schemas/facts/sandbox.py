"""Facts of the family ``sandbox``: where a session's memory was kept.

A snapshot holds what all the runs up to it have left; whoever wants the session as it stands loads
it and re-executes the runs after it.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.calls import ForkedRun, ForkPoint
from rookery.schemas.envelope import Fact, HistoryRestart
from rookery.schemas.integers import Unsigned
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = ["SANDBOX_FACTS", "SandboxFact"]


class SnapshotKept(Fact, frozen=True, kw_only=True, tag="sandbox.snapshot_kept.v1"):
    """A session's memory is in the blob store."""

    snapshot_id: str
    blob: str
    """Digest of the sealed snapshot."""
    language: Language
    build: str
    after_sequence: Unsigned
    """Where the last run it knows of ended: the sequence of the turn's last fact."""
    size_bytes: Unsigned
    limits: SessionLimits | UnsetType = UNSET
    """The session's, if they are not the defaults; who restores it is given them."""


class SnapshotRestored(Fact, frozen=True, kw_only=True, tag="sandbox.snapshot_restored.v1"):
    """This life of the session begins with a snapshot's memory, of its own or of another session.
    It is opened because of this, and ``run``, if it is set, is the first it takes in."""

    snapshot_id: str
    blob: str
    language: Language
    build: str
    after_sequence: Unsigned
    """What happened in the session up to here is forgotten with it."""
    size_bytes: Unsigned
    asked_by: str
    """Id of the command that wanted it: sent again, it changes nothing."""
    forked_from: ForkPoint | UnsetType = UNSET
    """Whose memory it is, where it was taken for this."""
    forked: ForkedRun | UnsetType = UNSET
    """Where ``run`` begins."""
    request: RunRequest | UnsetType = UNSET
    """Of ``run``."""
    request_blob: str | UnsetType = UNSET
    """As of ``session.input_accepted``."""
    limits: SessionLimits | UnsetType = UNSET
    """The session's from now on, if they are not the defaults."""


class HistoryRestarted(
    HistoryRestart, frozen=True, kw_only=True, tag="sandbox.history_restarted.v1"
):
    """No memory from before counts."""


SandboxFact = SnapshotKept | SnapshotRestored | HistoryRestarted
SANDBOX_FACTS = SandboxFact
