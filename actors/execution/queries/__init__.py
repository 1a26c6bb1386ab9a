"""Queries that read histories: validate, files, snapshot, fork, replay, destroy and quarantine."""

from rookery.actors.execution.queries.files import SessionFiles
from rookery.actors.execution.queries.fork import RunForker
from rookery.actors.execution.queries.quarantine import MessageQuarantine
from rookery.actors.execution.queries.replay import RunReplayer
from rookery.actors.execution.queries.snapshots import SessionDestroyer, SessionSnapshots
from rookery.actors.execution.queries.validate import RequestValidator

__all__ = [
    "MessageQuarantine",
    "RequestValidator",
    "RunForker",
    "RunReplayer",
    "SessionDestroyer",
    "SessionFiles",
    "SessionSnapshots",
]
