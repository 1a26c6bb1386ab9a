"""The decider of the family ``sandbox``: which snapshot a session's memory is restored from."""

from rookery.actors.session_snapshots.decider import (
    RecordSnapshot,
    RestoreSnapshot,
    SnapshotsDecider,
    SnapshotState,
)

__all__ = [
    "RecordSnapshot",
    "RestoreSnapshot",
    "SnapshotState",
    "SnapshotsDecider",
]
