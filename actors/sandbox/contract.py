"""What every guest language and everybody who runs programs agree on.

Three layers meet here. A ``Guest`` makes ``Instance``s of one interpreter and knows nothing of
sessions. A session (``session``) knows runs, limits and what to remember, but no language. A
``Sandbox`` (``pool``) owns threads and memory. Time, randomness and the outside world are
arguments everywhere: an instance sees only its ``GuestEnvironment`` and its ``Host``.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import shake_256
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import ToolFault
from rookery.schemas.capability import Capability
from rookery.schemas.run import (
    ErrorObject,
    Language,
    ResultKind,
    RunResult,
    RunStatus,
    SideEffect,
)

__all__ = [
    "GUEST_CODES",
    "LIMIT_CODES",
    "STATUS_OF_CODE",
    "AwaitedCall",
    "CallReply",
    "CallTool",
    "CheckStep",
    "Guest",
    "GuestEnvironment",
    "Host",
    "Image",
    "Instance",
    "Outcome",
    "ProgramCall",
    "ResumeStep",
    "StartStep",
    "Step",
    "StepEnded",
    "StepStopped",
    "StepWaits",
    "SuspendedRun",
    "Tool",
    "ToolResult",
    "status_of",
    "suspend",
]

STATUS_OF_CODE: Final[dict[str, RunStatus]] = {
    "SYNTAX_ERROR": RunStatus.VALIDATION_ERROR,
    "TYPE_ERROR": RunStatus.VALIDATION_ERROR,
    "UNKNOWN_TOOL": RunStatus.VALIDATION_ERROR,
    "UNSUPPORTED_FEATURE": RunStatus.VALIDATION_ERROR,
    "RESULT_NOT_SERIALIZABLE": RunStatus.VALIDATION_ERROR,
    "INVALID_ARGUMENT": RunStatus.VALIDATION_ERROR,
    "PERMISSION_DENIED": RunStatus.PERMISSION_DENIED,
    "TIMEOUT_WALL": RunStatus.TIMEOUT,
    "TIMEOUT_CPU": RunStatus.TIMEOUT,
    "CANCELLED": RunStatus.CANCELLED,
    "MEMORY_EXCEEDED": RunStatus.RESOURCE_EXHAUSTED,
    "EXTERNAL_CALLS_EXCEEDED": RunStatus.RESOURCE_EXHAUSTED,
    "STACK_OVERFLOW": RunStatus.RESOURCE_EXHAUSTED,
    "TOOL_ERROR": RunStatus.RUNTIME_ERROR,
    "RUNTIME_ERROR": RunStatus.RUNTIME_ERROR,
}
"""The status of a run that ends with this code."""

GUEST_CODES: Final = frozenset(STATUS_OF_CODE) - {
    "TIMEOUT_CPU",
    "CANCELLED",
    "EXTERNAL_CALLS_EXCEEDED",
}
"""What a guest may say of itself; anything else it says is a ``RUNTIME_ERROR``."""

LIMIT_CODES: Final = frozenset(("MEMORY_EXCEEDED", "STACK_OVERFLOW"))
"""Limits a guest notices itself. Uncaught, they put the session back to the start of the run."""


def status_of(code: str) -> RunStatus:
    return STATUS_OF_CODE.get(code, RunStatus.RUNTIME_ERROR)


# --- tools ------------------------------------------------------------------------------------


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function a program may call."""

    name: str
    awaited: bool = False
    """Whether the program awaits it; calls awaited together go out together."""
    side_effect: SideEffect = SideEffect.NONE
    schema_digest: str = ""
    """Of its schemas; a snapshot wants the same tool, not one of the same name."""
    capability: Capability | None = None
    """What programs that ask are told of it, but for the name: they are told this one."""


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a program asks of the outside world."""

    id: int
    """Counts from 1 in every run, in the order the calls arrive."""
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    awaited: bool
    digest: str
    """SHA3-256 of the canonical ``{"args", "kwargs"}``."""


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a call."""

    value: Any = None
    error: ToolFault | None = None
    duration_ms: int = 0


CallTool = Callable[[ProgramCall], ToolResult | None]
"""Answers a call at once, or says ``None``: not yet. Then the run waits, for as long as it takes,
without a thread or an instance. It may block; the run's wall time goes on meanwhile."""


def suspend(_call: ProgramCall) -> ToolResult | None:
    """Every call waits for ``resume``."""
    return None


# --- how a run stands --------------------------------------------------------------------------


class SuspendedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that cannot go on without the outside world. Not an end: ``resume`` continues it."""

    calls: tuple[ProgramCall, ...]
    """All that are open, oldest first. A synchronous one stands alone."""
    timer_ms: int | None = None
    """The program's next timer: resume with that much ``advance_ms`` if it comes first."""


Outcome = RunResult | SuspendedRun


# --- between a session and an instance ---------------------------------------------------------


class StartStep(msgspec.Struct, frozen=True, kw_only=True, tag="run", tag_field="step"):
    """Start a run."""

    code: str
    inputs: dict[str, Any]
    tools: dict[str, bool]
    """Name to whether it is awaited."""
    depth: int


class CheckStep(msgspec.Struct, frozen=True, kw_only=True, tag="check", tag_field="step"):
    """Say what is wrong with a source without running any of it."""

    code: str
    tools: dict[str, bool]


class CallReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer on its way into the guest: a ``value`` or an ``error``."""

    value: Any = msgspec.UNSET
    error: ToolFault | msgspec.UnsetType = msgspec.UNSET


class ResumeStep(msgspec.Struct, frozen=True, kw_only=True, tag="resume", tag_field="step"):
    """Feed answers to a waiting run, in the order they arrived."""

    replies: list[tuple[int, CallReply]]


class StepEnded(msgspec.Struct, frozen=True):
    """The program is over: a value, or an error it did not catch."""

    value: Any = None
    error: ErrorObject | None = None
    kind: ResultKind | UnsetType = UNSET
    cut: bool | UnsetType = UNSET


class StepStopped(StepEnded, frozen=True):
    """The guest was stopped; its instance is spent, and with it what the run did to the session."""


class AwaitedCall(msgspec.Struct, frozen=True):
    """An awaited call as the guest tells it, under a number of its own."""

    id: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


class StepWaits(msgspec.Struct, frozen=True):
    """The program waits for these calls."""

    calls: list[AwaitedCall]
    """Those not told before."""
    outstanding: list[int]
    timer_s: float | None = None


Step = StepEnded | StepWaits


class GuestEnvironment(msgspec.Struct):
    """The whole world as a guest perceives it: chance and time. Part of every snapshot."""

    seed: bytes = b""
    drawn: int = 0
    clock_ns: int = 0

    def random_bytes(self, count: int) -> bytes:
        self.drawn += 1
        return shake_256(self.seed + self.drawn.to_bytes(8)).digest(count)

    def read_clock_ns(self) -> int:
        """Never the same twice, so that programs that wait for time to pass see it pass."""
        self.clock_ns += 1000
        return self.clock_ns

    def advance_clock(self, duration_ns: int) -> None:
        self.clock_ns = min(self.clock_ns + max(duration_ns, 0), (1 << 62) - 1)

    def copy(self) -> GuestEnvironment:
        return GuestEnvironment(self.seed, self.drawn, self.clock_ns)


class Image(msgspec.Struct, frozen=True):
    """An instance at rest: what differs from a pristine one, and its surroundings."""

    memory: bytes
    surroundings: GuestEnvironment


class Host(Protocol):
    """What an instance may ask while it is in a step. All may raise ``GuestStopped``."""

    def call(self, name: str, arguments: bytes) -> bytes:
        """A synchronous tool call: the ``{"args", "kwargs"}`` as JSON, a ``CallReply`` as JSON."""

    def emit(self, channel: int, text: bytes) -> bool:
        """Output on channel 1 (stdout) or 2 (stderr). Whether more is wanted."""

    def watch(self) -> None:
        """Called every few milliseconds: enforces what a guest cannot be trusted to."""


class Instance(Protocol):
    """One interpreter. Used by one thread at a time."""

    surroundings: GuestEnvironment
    fuel_used: int
    """By the last step."""

    @property
    def memory_bytes(self) -> int: ...

    def limit_memory(self, size_bytes: int) -> None: ...

    def step(self, request: bytes, host: Host) -> Step:
        """Work off one encoded ``StartStep``, ``ResumeStep`` or ``CheckStep``. ``GuestStopped``
        means that this instance is spent."""

    def image(self) -> Image | None:
        """Between steps; ``None`` if this kind of instance cannot be taken out of its thread."""

    def load(self, image: Image, /) -> None:
        """Into a pristine instance only."""

    def close(self) -> None: ...


class Guest(Protocol):
    """One build of one language's interpreter."""

    language: Language

    @property
    def build(self) -> str:
        """Digest of what runs; images fit the build they were taken from and no other."""

    @property
    def start(self) -> int:
        """Checksum of the memory that every instance begins with, and from which images are told:
        the host has had a hand in it. 0 where there are no images."""

    def instance(self) -> Instance: ...
