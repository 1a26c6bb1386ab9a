"""Queries that read a session's history: validate, snapshot, fork, replay and destroy."""

from rookery.actors.execution.queries.destroy import SessionDestroyer
from rookery.actors.execution.queries.fork import RunForker
from rookery.actors.execution.queries.replay import RunReplayer
from rookery.actors.execution.queries.snapshots import SessionSnapshots
from rookery.actors.execution.queries.validate import RequestValidator

__all__ = [
    "RequestValidator",
    "RunForker",
    "RunReplayer",
    "SessionDestroyer",
    "SessionSnapshots",
]
