"""A tool worker as a process: wires a connection, a worker endpoint and a tool registry."""

from __future__ import annotations

import logging
import threading
from typing import Final

from rookery.actors.tools import Worker, check_surface
from rookery.actors.tools.authoring import ToolRegistry
from rookery.bus.clock import SystemClock, monotonic_s
from rookery.bus.loop_thread import LoopThread
from rookery.bus.nats import Connection
from rookery.bus.reads import NodeBlobs
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects
from rookery.bus.workers import NatsWorkerEndpoint
from rookery.ops.config import Config
from rookery.ops.process_identity import process_name
from rookery.ops.server import server_of
from rookery.schemas.errors import CodedError

__all__ = ["WorkerProcess"]

log = logging.getLogger(__name__)

CLOSE_S = 1.0
"""For functions that react to cancellation; others end with the process."""
SERVER_POLL_S: Final = 0.25
SERVER_NOTICE_S: Final = 30.0
"""How often a worker that starts says that it waits for a server."""


class WorkerProcess:
    """Serves its surface from ``start`` to ``stop``, through every outage."""

    def __init__(
        self, config: Config, registry: ToolRegistry, *, surface: str, concurrency: int
    ) -> None:
        check_surface(surface)
        self.name, self._drain_s = process_name(), config.node.drain_timeout_s
        self._config, self._registry, self._surface = config, registry, surface
        self._concurrency, self._loop = concurrency, LoopThread()
        self._connection: Connection
        self._worker: Worker

    def start(self, stopping: threading.Event) -> bool:
        """Return once the worker can receive calls; ``False`` if it is stopped while it waits for
        a server."""
        connection = self._connect(stopping)
        if connection is None:
            self._loop.close()
            return False
        subjects = Subjects(self._config.realm)
        blobs = NodeBlobs(connection, subjects)
        self._connection, self._worker = (
            connection,
            Worker(
                NatsWorkerEndpoint(connection, subjects, blobs, self._surface),
                self._registry,
                name=self.name,
                concurrency=self._concurrency,
                now_ms=SystemClock().now_ms,
            ),
        )
        self._loop.run(self._worker.open())
        return True

    def _connect(self, stopping: threading.Event) -> Connection | None:
        """A connection, as soon as there is a server; ``None`` if the worker is stopped before. A
        node's own server starts with the node, and the node waits for its first worker."""
        notice_s = monotonic_s()
        while True:
            try:
                server = server_of(self._config, Role.WORKER, self._surface)
                connection = Connection(server.url, server.access, name="rookery-worker")
                self._loop.run(connection.open())
            except CodedError as error:
                if error.code != "SERVER_UNREACHABLE":
                    raise
                if monotonic_s() >= notice_s:
                    command = f"rookery up --workers {self._surface}"
                    about = {"reason": error.message, "start_one": command}
                    log.warning("waiting for a server", extra=about)
                    notice_s = monotonic_s() + SERVER_NOTICE_S
            else:
                return connection
            if stopping.wait(SERVER_POLL_S):
                return None

    def stop(self) -> bool:
        """Refuse new calls, finish those under way and stop; ``False`` if some took too long."""
        drained = self._loop.run(self._worker.drain(self._drain_s))
        self._worker.close(CLOSE_S)
        self._loop.run(self._connection.close())
        self._loop.close()
        return drained
