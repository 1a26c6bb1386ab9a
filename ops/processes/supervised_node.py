"""One process of a node: ``python -m rookery.ops.processes <fd>``.

The open file ``fd`` is its end of the socket to its supervisor. When the other end closes, the
supervisor is gone, even after a ``kill -9``: the process then ends at once, as the whole node did.
It does not drain first, because the next node of this name would have to wait for it, and the two
together would exceed the limits of tools.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from rookery.actors.slot_limits import DeclaredLimit, SlotNotice, SlotReport
from rookery.ops.logs import configure, scrub_output
from rookery.ops.memory_tuning import tune_memory, tune_memory_for_start
from rookery.ops.node import Node
from rookery.ops.processes.managed_process import (
    DeclareTools,
    DrainRequested,
    FromProcess,
    ProcessReady,
    ProcessStopped,
    ReadState,
    ReportSlots,
    Setup,
    StartFailed,
    StateRead,
    StopProcess,
    ToProcess,
    decode_to_process,
    encode,
)
from rookery.ops.processes.process_metrics import METRICS_FOLDER, count_in_files
from rookery.ops.processes.process_share import ProcessShare, SlotUsage
from rookery.ops.processes.signals import StopEvent, stop_signals
from rookery.schemas.errors import CodedError

__all__ = ["SupervisedNode", "SupervisorLink", "main"]

log = logging.getLogger(__name__)

START_FAILED: Final = 4
"""Exit code; the supervisor has the error."""


class SupervisorLink:
    """The process's end of the socket. Sending returns at once; a paused supervisor blocks
    nothing."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._lines = connected.makefile("rb")
        self._outgoing: SimpleQueue[FromProcess | None] = SimpleQueue()
        self.number = 0
        """Which of the node's processes this is; set by its first message."""
        self._usage: SlotUsage | None = None
        self._on_notice: Callable[[SlotNotice], None] = lambda _: None
        self._writer = threading.Thread(target=self._write, name="rookery-link-out", daemon=True)
        self._writer.start()

    def receive(self) -> ToProcess | None:
        """The next message; ``None`` if the supervisor is gone."""
        try:
            line = self._lines.readline()
        except OSError:
            return None
        return decode_to_process(line) if line.endswith(b"\n") else None

    def send(self, message: FromProcess) -> None:
        """Send soon, in order."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Send what is left."""
        self._outgoing.put(None)
        self._writer.join()

    def on_notice(self, notice: SlotNotice) -> None:
        """Pass on what the allocator says."""
        self._on_notice(notice)

    # --- the port SlotLink ------------------------------------------------------------------------

    def open(
        self, declared: Sequence[DeclaredLimit], on_notice: Callable[[SlotNotice], None]
    ) -> None:
        self._on_notice = on_notice
        tools = [limit.tool for limit in declared]
        self._usage = SlotUsage(Path(os.environ[METRICS_FOLDER]), self.number, tools)
        self.send(DeclareTools(tuple(declared)))

    def report(self, reports: Sequence[SlotReport]) -> None:
        self.send(ReportSlots(tuple(reports)))

    def record_used(self, tool: str, used: int) -> None:
        assert self._usage is not None
        self._usage.record(tool, used)

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            try:
                self._socket.sendall(encode(message))
            except OSError:
                return  # The reader notices that the supervisor is gone.


class SupervisedNode:
    """Runs a node until its supervisor or a signal stops it."""

    def __init__(self, setup: Setup, link: SupervisorLink, stopped: StopEvent) -> None:
        self._link, self._stopped = link, stopped
        config = setup.config
        share = ProcessShare(
            number=setup.number,
            count=config.node.processes,
            server=setup.server,
            is_embedded=setup.is_embedded,
            slots=link,
        )
        self._node = Node(
            config, lambda: link.send(DrainRequested()), share=share, stopping=stopped
        )
        self._readers = ThreadPoolExecutor(1, "rookery-state")
        threading.Thread(target=self._receive, name="rookery-link-in", daemon=True).start()

    def run(self) -> int:
        """The exit code."""
        tune_memory_for_start()
        try:
            if not self._node.start():
                self._link.send(ProcessStopped(drained=True))
                return 0
        except CodedError as error:
            self._link.send(StartFailed.of(error))
            return START_FAILED
        tune_memory()
        self._link.send(ProcessReady())
        self._stopped.wait_for_signal()
        log.info("node stopping", extra={"node": self._node.name, "reason": self._stopped.reason})
        drained = self._node.stop(self._stopped.reason)
        log.info("node stopped", extra={"node": self._node.name, "drained": drained})
        self._link.send(ProcessStopped(drained))
        return 0

    def _receive(self) -> None:
        while (message := self._link.receive()) is not None:
            match message:
                case StopProcess(reason):
                    self._stopped.reason = reason
                    self._stopped.set()
                case ReadState():
                    self._readers.submit(self._read_state, message)
                case Setup():
                    """Only the first message is one."""
                case _:
                    self._link.on_notice(message)
        _end_with_supervisor()

    def _read_state(self, asked: ReadState) -> None:
        node, name = self._node, asked.name
        if name == "gauges":
            answer = StateRead(name, gauges=tuple(node.gauges()))
        else:
            answer = StateRead(name, tuple(node.alive() if name == "alive" else node.ready()))
        self._link.send(answer)


def _end_with_supervisor() -> None:
    """End without draining, and remove what the supervisor would have removed."""
    shutil.rmtree(os.environ.get(METRICS_FOLDER, ""), ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    link = SupervisorLink(socket.socket(fileno=int(sys.argv[1])))
    with stop_signals() as stopped:
        setup = link.receive()
        if not isinstance(setup, Setup):
            return 1
        scrub_output()
        configure(setup.config.log.level, setup.config.log.format, sys.stderr)
        count_in_files(setup.number)
        link.number = setup.number
        code = SupervisedNode(setup, link, stopped).run()
    link.close()
    return code
