"""The decider of the family ``sandbox``: which snapshot a session's memory is restored from."""

from rookery.actors.session_snapshots.decider import (
    DeleteSnapshots,
    RecordSnapshot,
    RestoreSnapshot,
    SnapshotsDecider,
    SnapshotState,
)

__all__ = [
    "DeleteSnapshots",
    "RecordSnapshot",
    "RestoreSnapshot",
    "SnapshotState",
    "SnapshotsDecider",
]
