"""Supervises the node's own server: restarts it on its store and its port when it ends.

Clients reconnect by themselves, and the store has everything the server acknowledged. If the server
does not start, or ends again too often, the supervisor stops restarting it and reports the error.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from rookery.bus.clock import monotonic_s
from rookery.bus.roles import Role
from rookery.bus.server import EmbeddedServer, Store
from rookery.ops.server.realm_server import RealmServer
from rookery.schemas.errors import CodedError, Failed

__all__ = ["ServerSupervisor"]

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Before each restart; after the last failed one the supervisor stops."""
STABLE_AFTER_S: Final = 60.0
"""A server that has run for so long gets all restarts again."""


class ServerSupervisor:
    """``on_loss`` is called once, on the supervisor's thread, when it stops restarting."""

    def __init__(self, server: EmbeddedServer, on_loss: Callable[[CodedError], None]) -> None:
        self.restarts = 0
        """How often the server was restarted."""
        self._server, self._on_loss = server, on_loss
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(
            target=self._supervise, name="rookery-server", daemon=True
        )
        self._last_error: CodedError = Failed(
            "SERVER_START_FAILED", "nats-server ends again and again"
        )

    @property
    def realm_server(self) -> RealmServer:
        """For nodes of the realm."""
        return RealmServer.of(self._server.address, self._server.credential(Role.NODE))

    def start(self) -> None:
        """Start the server and supervise it."""
        self._server.start()
        self._supervisor.start()

    def stop(self) -> None:
        """Stop supervising, then stop the server; a restart under way is cancelled."""
        self._stopping.set()
        self._supervisor.join()
        self._server.stop()

    def _supervise(self) -> None:
        pauses, up_s = iter(PAUSES_S), monotonic_s()
        while not self._stopping.wait(POLL_S):
            if self._server.running:
                if monotonic_s() - up_s >= STABLE_AFTER_S:
                    pauses = iter(PAUSES_S)
                continue
            if self._is_other_process():
                continue  # Another process started a server on this store; use that one.
            pause_s = next(pauses, None)
            if pause_s is None:
                log.error("server restarts exhausted", extra={"code": self._last_error.code})
                return self._on_loss(self._last_error)
            log.error("server ended", extra={"restart_in_s": pause_s})
            if not self._stopping.wait(pause_s):
                self._restart()
                up_s = monotonic_s()
        return None

    def _is_other_process(self) -> bool:
        """Whether a server that another process started uses the store."""
        store = Store(self._server.store)
        other = store.running_server() if store.is_locked() else None
        return other is not None and other.pid != self._server.pid

    def _restart(self) -> None:
        try:
            self._server.restart(lambda: not self._stopping.is_set())
        except Exception as error:
            if not self._stopping.is_set():
                self._record_failure(error)
        else:
            self.restarts += 1
            log.warning("server restarted", extra={"restarts": self.restarts})

    def _record_failure(self, error: Exception) -> None:
        """Log the error; the supervisor retries after any error."""
        if isinstance(error, CodedError):
            self._last_error = error
        else:
            text = f"nats-server was not started: {type(error).__name__}: {error}"
            self._last_error = Failed("SERVER_START_FAILED", text)
        log.error("server restart failed", extra={"code": self._last_error.code}, exc_info=error)
