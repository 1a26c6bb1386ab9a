"""Queries that read histories: validate, files, snapshot, fork, replay, destroy and quarantine."""

from rookery.actors.execution.queries.quarantine import MessageQuarantine

__all__ = ["MessageQuarantine"]
