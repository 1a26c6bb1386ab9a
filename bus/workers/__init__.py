"""Calls between nodes and tool workers."""

from rookery.bus.workers.server import NatsWorkerEndpoint

__all__ = [
    "NatsWorkerEndpoint",
]
