"""One process of a node, as its supervisor sees it: from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from rookery.ops.processes.messages import (
    LINE_BYTES_MAX,
    FromProcess,
    ProcessReady,
    ProcessStopped,
    ReadState,
    Setup,
    StartFailed,
    StateName,
    StateRead,
    StopProcess,
    ToProcess,
    decode_from_process,
    encode,
)
from rookery.schemas.errors import CodedError, Failed

__all__ = ["ManagedProcess"]

log = logging.getLogger(__name__)

_MODULE: Final = "rookery.ops.processes"


class ManagedProcess:
    """Lives on the supervisor's loop."""

    def __init__(
        self,
        number: int,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.number, self.pid = number, process.pid
        self.is_ready = False
        self.tools: Sequence[str] = ()
        """The tools that it declared."""
        self.drained = False
        """Whether it ended in order, with nothing left for the next owner."""
        self.error: CodedError = Failed(
            "NODE_START_FAILED", f"process {number} ended while it started"
        )
        """Why it did not start, if it did not."""
        self._process, self._reader, self._writer = process, reader, writer
        self._states: dict[StateName, asyncio.Future[StateRead | None]] = {}
        """The answers to come, by what they answer."""

    @classmethod
    async def start(cls, setup: Setup, variables: Mapping[str, str]) -> ManagedProcess:
        """Start the process. It has a session of its own, so that a Ctrl-C reaches only the
        supervisor."""
        ours, its = socket.socketpair()
        with its:
            process = _spawn(its.fileno(), variables)
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        started = cls(setup.number, process, reader, writer)
        started.send(setup)
        return started

    async def run(self, on_message: Callable[[ManagedProcess, FromProcess], None]) -> int:
        """Handle its messages until it has ended; its exit code."""
        try:
            with suppress(ConnectionError):
                while (line := await self._reader.readline()).endswith(b"\n"):
                    self._handle(decode_from_process(line), on_message)
        finally:
            self._writer.close()  # The process ends, if it has not.
            for answer in self._states.values():
                answer.set_result(None)
            self._states.clear()
        return await asyncio.to_thread(self._process.wait)

    def send(self, message: ToProcess) -> None:
        """Send, unless it has ended."""
        if not self._writer.is_closing():
            self._writer.write(encode(message))

    def stop(self, reason: str) -> None:
        """Ask it to drain and end."""
        self.send(StopProcess(reason))

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.send_signal(signal.SIGKILL)

    async def read_state(self, name: StateName, timeout_s: float) -> StateRead | None:
        """Its probes or gauges; ``None`` without an answer in time. A question that has no answer
        yet is not asked again, so a paused process gets no pile of them."""
        answer = self._states.get(name)
        if answer is None:
            answer = self._states[name] = asyncio.get_running_loop().create_future()
            self.send(ReadState(name))
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            return None

    def _handle(
        self, message: FromProcess, on_message: Callable[[ManagedProcess, FromProcess], None]
    ) -> None:
        match message:
            case StateRead(name):
                if (answer := self._states.pop(name, None)) is not None:
                    answer.set_result(message)
            case ProcessStopped(drained):
                self.drained = drained
            case StartFailed():
                self.error = message.error()
            case _:
                self.is_ready = self.is_ready or isinstance(message, ProcessReady)
                on_message(self, message)


def _spawn(file: int, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(file)],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        pass_fds=(file,),
        start_new_session=True,
    )
