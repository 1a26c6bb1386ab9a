"""Calls between nodes and tool workers, and invocations of hooks that are served outside."""

from rookery.bus.workers.hook_services import NatsHookEndpoint
from rookery.bus.workers.server import NatsWorkerEndpoint

__all__ = [
    "NatsHookEndpoint",
    "NatsWorkerEndpoint",
]
