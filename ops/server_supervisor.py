"""The node's own server, kept at work: one that ends is started again, on its store and its port.

Who was connected comes back by itself, and what was acknowledged is in the store. A server that
does not come back, or does not stay, is given up, and whoever looks after the node hears why. Owns
when to start it; how is ``rookery.bus.server.server``'s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from rookery.bus.clock import monotonic_s
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.server.store import Store
from rookery.schemas.errors import CodedError, Failed

__all__ = ["ServerSupervisor"]

log = logging.getLogger(__name__)

POLL_S: Final = 0.2
PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0)
"""Before each try to start it again; after the last one it is given up."""
STABLE_AFTER_S: Final = 60.0
"""Who has been up for so long may fail as often again."""


class ServerSupervisor:
    """``on_loss`` is called once, on a thread of ours, when the server is given up."""

    def __init__(self, server: EmbeddedServer, on_loss: Callable[[CodedError], None]) -> None:
        self.restarts = 0
        """How often it was started again."""
        self._server, self._on_loss = server, on_loss
        self._stopping = threading.Event()
        self._supervisor = threading.Thread(
            target=self._supervise, name="rookery-server", daemon=True
        )
        self._last_error: CodedError = Failed(
            "SERVER_START_FAILED", "nats-server ends again and again"
        )

    @property
    def url(self) -> str:
        return self._server.url

    def start(self) -> None:
        """As ``EmbeddedServer.start``; from now on it is looked after."""
        self._server.start()
        self._supervisor.start()

    def stop(self) -> None:
        """Look after it no more, then let it end: one that is just being started is called off."""
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
                continue  # Somebody was quicker: as long as it lives, that server is ours as well.
            pause_s = next(pauses, None)
            if pause_s is None:
                log.error("the server is given up", extra={"code": self._last_error.code})
                return self._on_loss(self._last_error)
            log.error("the server has ended", extra={"again_in_s": pause_s})
            if not self._stopping.wait(pause_s):
                self._restart()
                up_s = monotonic_s()
        return None

    def _is_other_process(self) -> bool:
        """Whether a server that we did not start is on the store."""
        store = Store(self._server.store)
        there = store.running_server() if store.is_locked() else None
        return there is not None and there.pid != self._server.pid

    def _restart(self) -> None:
        try:
            self._server.restart(lambda: not self._stopping.is_set())
        except Exception as error:
            if not self._stopping.is_set():
                self._record_failure(error)
        else:
            self.restarts += 1
            log.warning("the server was started again", extra={"restarts": self.restarts})

    def _record_failure(self, error: Exception) -> None:
        """Whatever it failed of, it is tried again: nobody else would."""
        if isinstance(error, CodedError):
            self._last_error = error
        else:
            said = f"{type(error).__name__}: {error}"
            self._last_error = Failed("SERVER_START_FAILED", f"nats-server was not started: {said}")
        log.error(
            "the server was not started", extra={"code": self._last_error.code}, exc_info=error
        )
