"""A tool worker as a process: wires a connection, a worker endpoint and a tool registry."""

from __future__ import annotations

from rookery.actors.tools import Worker, check_surface
from rookery.actors.tools.authoring import ToolRegistry
from rookery.bus.clock import SystemClock
from rookery.bus.loop_thread import LoopThread
from rookery.bus.nats import Connection
from rookery.bus.reads import NodeBlobs
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects
from rookery.bus.workers import NatsWorkerEndpoint
from rookery.ops.config import Config
from rookery.ops.process_identity import process_name
from rookery.ops.server import server_of

__all__ = ["WorkerProcess"]

CLOSE_S = 1.0
"""For functions that react to cancellation; others end with the process."""


class WorkerProcess:
    """Serves its surface from ``start`` to ``stop``, through every outage."""

    def __init__(
        self, config: Config, registry: ToolRegistry, *, surface: str, concurrency: int
    ) -> None:
        check_surface(surface)
        self.name, self._drain_s = process_name(), config.node.drain_timeout_s
        self._loop, subjects = LoopThread(), Subjects(config.realm)
        server = server_of(config, Role.WORKER, surface)
        self._connection = connection = Connection(server.url, server.access, name="rookery-worker")
        blobs = NodeBlobs(connection, subjects)
        self._worker = Worker(
            NatsWorkerEndpoint(connection, subjects, blobs, surface),
            registry,
            name=self.name,
            concurrency=concurrency,
            now_ms=SystemClock().now_ms,
        )

    def start(self) -> None:
        """Return once the worker can receive calls."""
        self._loop.run(self._connection.open())
        self._loop.run(self._worker.open())

    def stop(self) -> bool:
        """Refuse new calls, finish those under way and stop; ``False`` if some took too long."""
        drained = self._loop.run(self._worker.drain(self._drain_s))
        self._worker.close(CLOSE_S)
        self._loop.run(self._connection.close())
        self._loop.close()
        return drained
