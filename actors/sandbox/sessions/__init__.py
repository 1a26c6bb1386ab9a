"""Sessions in the sandbox: their queues, runs, logs, meters and snapshots."""

from rookery.actors.sandbox.sessions.run_log import RecordedCall, RecordedRun, ResultBatch
from rookery.actors.sandbox.sessions.session import SessionCopy
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
