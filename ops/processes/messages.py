"""The messages between the supervisor and a process of its node: lines of JSON on a socket.

Both ends are of one installation, so the messages have no versions.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rookery.actors.tools import DeclaredLimit, SlotNotice, SlotReport
from rookery.ops.config import Config
from rookery.ops.health import Probe
from rookery.ops.metrics import GaugeValue
from rookery.ops.server import RealmServer
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = [
    "LINE_BYTES_MAX",
    "DeclareTools",
    "DrainRequested",
    "FromProcess",
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
