"""Sessions in the sandbox: their queues, runs, logs, meters and snapshots."""

from rookery.actors.sandbox.sessions.recorded_runs import RecordedCall, RecordedRun, ResultBatch
from rookery.actors.sandbox.sessions.session_copy import SessionCopy
from rookery.actors.sandbox.sessions.snapshot import (
    Snapshot,
    SnapshotHeader,
    open_snapshot,
    relabelled,
    resealed,
)

__all__ = [
    "RecordedCall",
    "RecordedRun",
    "ResultBatch",
    "SessionCopy",
    "Snapshot",
    "SnapshotHeader",
    "open_snapshot",
    "relabelled",
    "resealed",
]
