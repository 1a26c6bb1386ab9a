"""One process of a node, as its supervisor sees it, and the messages between the two."""

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
from typing import Final, Literal

import msgspec

from rookery.actors.slot_limits import DeclaredLimit, SlotNotice, SlotReport
from rookery.ops.config import Config
from rookery.ops.http_server import Probe
from rookery.ops.metrics import GaugeValue
from rookery.ops.server import RealmServer
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = [
    "LINE_BYTES_MAX",
    "DeclareTools",
    "DrainRequested",
    "FromProcess",
    "ManagedProcess",
    "ProcessReady",
    "ProcessStopped",
    "ReadState",
    "ReportSlots",
    "Setup",
    "StartFailed",
    "StateName",
    "StateRead",
    "StopProcess",
    "ToProcess",
    "decode_from_process",
    "decode_to_process",
    "encode",
]

# --- messages -------------------------------------------------------------------------------------

# The messages between the supervisor and a process of its node: lines of JSON on a socket.
#
# Both ends are of one installation, so the messages have no versions.


LINE_BYTES_MAX = 4 << 20
StateName = Literal["alive", "ready", "gauges"]


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The first message to a process: what it is."""

    config: Config
    """With the node's name."""
    number: int
    server: RealmServer
    is_embedded: bool


class StopProcess(msgspec.Struct, frozen=True, tag=True):
    """Drain and end."""

    reason: str


class ReadState(msgspec.Struct, frozen=True, tag=True):
    """Report probes or gauges."""

    name: StateName


class ProcessReady(msgspec.Struct, frozen=True, tag=True):
    """The process owns its share of the partitions."""


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The process ends, because it cannot start."""

    code: str
    message: str
    hint: str
    is_refusal: bool

    @classmethod
    def of(cls, error: CodedError) -> StartFailed:
        is_refusal = isinstance(error, Refused)
        return cls(error.code, error.message, error.hint, is_refusal)

    def error(self) -> CodedError:
        """The error as the process raised it."""
        kind = Refused if self.is_refusal else Failed
        return kind(self.code, self.message, hint=self.hint)


class DrainRequested(msgspec.Struct, frozen=True, tag=True):
    """An operator asked the node to drain."""


class DeclareTools(msgspec.Struct, frozen=True, tag=True):
    """The limits of the tools that the process offers."""

    limits: tuple[DeclaredLimit, ...]


class ReportSlots(msgspec.Struct, frozen=True, tag=True):
    """What changed in the slots of the process."""

    reports: tuple[SlotReport, ...]


class StateRead(msgspec.Struct, frozen=True, tag=True):
    """The answer to ``ReadState``."""

    name: StateName
    probes: tuple[Probe, ...] = ()
    gauges: tuple[GaugeValue, ...] = ()


class ProcessStopped(msgspec.Struct, frozen=True, tag=True):
    """The last message of a process that was stopped."""

    drained: bool


ToProcess = Setup | StopProcess | ReadState | SlotNotice
FromProcess = (
    ProcessReady
    | StartFailed
    | DrainRequested
    | DeclareTools
    | ReportSlots
    | StateRead
    | ProcessStopped
)

_ENCODER = msgspec.json.Encoder()
_TO_PROCESS: msgspec.json.Decoder[ToProcess] = msgspec.json.Decoder(ToProcess)
_FROM_PROCESS: msgspec.json.Decoder[FromProcess] = msgspec.json.Decoder(FromProcess)


def encode(message: ToProcess | FromProcess) -> bytes:
    """One line."""
    return _ENCODER.encode(message) + b"\n"


def decode_to_process(line: bytes) -> ToProcess:
    """A message from the supervisor."""
    return _TO_PROCESS.decode(line)


def decode_from_process(line: bytes) -> FromProcess:
    """A message from a process."""
    return _FROM_PROCESS.decode(line)


# --- managed process ------------------------------------------------------------------------------

# One process of a node, as its supervisor sees it: from its start to its end.


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
