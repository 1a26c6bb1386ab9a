"""Sessions in the sandbox: their queues, runs, logs, meters and snapshots."""

from __future__ import annotations

from rookery.actors.sandbox.sessions.run_log import RecordedCall, RecordedRun, ResultBatch
from rookery.actors.sandbox.sessions.session import SessionCopy
from rookery.actors.sandbox.sessions.snapshot import Snapshot

__all__ = ["RecordedCall", "RecordedRun", "ResultBatch", "SessionCopy", "Snapshot"]
