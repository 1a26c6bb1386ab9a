"""The types between the layers of the sandbox, for all guest languages.

A ``Guest`` makes ``Instance``s of one interpreter. A ``Session`` runs programs in an instance,
within limits, and records what is needed to run them again. A ``Sandbox`` owns sessions, threads
and memory. Time, randomness and the outside world are arguments everywhere: an instance reads only
its ``GuestEnvironment`` and calls only its ``Host``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from hashlib import shake_256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.calls import Capability, ToolFault
from rookery.schemas.run import (
    ErrorObject,
    Language,
    OutputStream,
    ResultKind,
    RunResult,
    RunStatus,
    SideEffect,
)

if TYPE_CHECKING:
    from rookery.actors.sandbox.runtime.introspection import ToolDescriptions

__all__ = [
    "GUEST_CODES",
    "LIMIT_CODES",
    "QUICK_BYTES",
    "STATUS_OF_CODE",
    "AwaitedCall",
    "CallReply",
    "CallTool",
    "CheckStep",
    "FilesStep",
    "Guest",
    "GuestEnvironment",
    "Host",
    "Image",
    "Instance",
    "MemoryCopy",
    "OnOutput",
    "Outcome",
    "Pause",
    "PendingResult",
    "ProgramCall",
    "ResumeStep",
    "StartStep",
    "Step",
    "StepEnded",
    "StepPauses",
    "StepStopped",
    "StepWaits",
    "SuspendedRun",
    "Tool",
    "ToolResult",
    "ToolTable",
    "ignore_output",
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
    "FILE_NOT_FOUND": RunStatus.VALIDATION_ERROR,
    "FILES_FULL": RunStatus.RESOURCE_EXHAUSTED,
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
"""Codes that a guest may reply with; any other becomes ``RUNTIME_ERROR``."""

LIMIT_CODES: Final = frozenset(("MEMORY_EXCEEDED", "STACK_OVERFLOW"))
"""Limits that a guest detects itself. If uncaught, the run leaves no effects on its session."""


def status_of(code: str) -> RunStatus:
    return STATUS_OF_CODE.get(code, RunStatus.RUNTIME_ERROR)


# --- tools ------------------------------------------------------------------------------------


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function a program may call."""

    name: str
    awaited: bool = False
    """Whether the program awaits the call; calls awaited together start together."""
    side_effect: SideEffect = SideEffect.NONE
    schema_digest: str = ""
    """Digest of its schemas; a snapshot is restored only with tools of equal digests."""
    hidden: bool = False
    """Whether programs can call the tool without finding it in ``list_tools``."""
    of_surface: bool = False
    """Whether it is of the realm's catalogue, which programs search."""
    pending: bool = False
    """Whether the node was not connected to its surface when the run started."""
    by_mention: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether a guest has the name only once a program of its session mentions it."""
    decision: str = ""
    """What the policy decides about every call of it, if it does not allow them: ``ask`` or
    ``deny``. ``current_policy`` tells it."""
    capability: Capability | None = None
    """The description that ``describe_tool`` returns, except for the name, which is ``name``."""


class ToolTable(dict[str, Tool]):
    """Checked tools by name. Runs with the same tools share it, and what is derived from it."""

    callable_names: dict[str, bool] | None = None
    """By name of each callable, whether its calls are awaited; ``None`` before the first run."""
    by_mention: frozenset[str] | None = None
    """The names that a guest has only once they are mentioned."""
    always_bound: dict[str, bool] | None = None
    """``callable_names`` without them."""
    descriptions: ToolDescriptions | None = None


class ProgramCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a tool by a program."""

    id: int
    """Counts from 1 in each run, in the order of the calls."""
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    awaited: bool
    digest: str
    """SHA3-256 of the canonical ``{"args", "kwargs"}``."""


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a call: a value or an error."""

    value: Any = None
    error: ToolFault | None = None
    duration_ms: int = 0


PendingResult = Future[ToolResult | None]
"""The result that a call will have."""

CallTool = Callable[[ProgramCall], ToolResult | PendingResult | None]
"""Returns the result of a call, at once or pending, or ``None`` to suspend the run. A suspended run
needs no thread and no instance; a run whose result is pending keeps its instance and, where guests
run on fibers, needs no thread. The function may block. All this counts as wall time of the run."""


def suspend(_call: ProgramCall) -> ToolResult | PendingResult | None:
    """Suspend the run at every call, until ``resume``."""
    return None


OnOutput = Callable[[int, OutputStream, str], None]
"""Gets each piece of a run's output when the program prints it for the first time, with its number,
on the thread that executes the program."""


def ignore_output(_number: int, _stream: OutputStream, _text: str) -> None:
    """Leave the output to the result."""


# --- outcomes of a run --------------------------------------------------------------------------


class SuspendedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits for calls or a timer; ``resume`` continues it."""

    calls: tuple[ProgramCall, ...]
    """All open calls, oldest first; exactly one if it is synchronous."""
    timer_ms: int | None = None
    """Until the program's next timer: resume with this ``advance_ms`` if no call ends before."""


Outcome = RunResult | SuspendedRun


# --- between a session and an instance ---------------------------------------------------------


class StartStep(msgspec.Struct, frozen=True, kw_only=True, tag="run", tag_field="step"):
    """Start a run."""

    code: str
    inputs: dict[str, Any]
    tools: dict[str, bool]
    """By name: whether calls of the tool are awaited."""
    depth: int


class CheckStep(msgspec.Struct, frozen=True, kw_only=True, tag="check", tag_field="step"):
    """Check a source without running it."""

    code: str
    tools: dict[str, bool]


class FilesStep(msgspec.Struct, frozen=True, kw_only=True, tag="files", tag_field="step"):
    """Access files of the session between runs, by the rules that programs have."""

    op: Literal["write", "remove", "read", "list"]
    path: str
    at: int = 0
    count: int = 0
    data: bytes = b""


class CallReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a call, for the guest: a ``value`` or an ``error``."""

    value: Any = msgspec.UNSET
    error: ToolFault | msgspec.UnsetType = msgspec.UNSET


class ResumeStep(msgspec.Struct, frozen=True, kw_only=True, tag="resume", tag_field="step"):
    """Resume a suspended run with replies, in the order of their arrival."""

    replies: list[tuple[int, CallReply]]


class StepEnded(msgspec.Struct, frozen=True):
    """The program ended with a value or an uncaught error."""

    value: Any = None
    error: ErrorObject | None = None
    kind: ResultKind | UnsetType = UNSET
    cut: bool | UnsetType = UNSET


class StepStopped(StepEnded, frozen=True):
    """The host stopped the guest: its instance is unusable, and the effects of the run are lost."""


class AwaitedCall(msgspec.Struct, frozen=True):
    """An awaited call in a guest's reply, with the guest's own number."""

    id: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


class StepWaits(msgspec.Struct, frozen=True):
    """The program waits for calls or a timer."""

    calls: list[AwaitedCall]
    """Calls that no earlier step reported."""
    outstanding: list[int]
    timer_s: float | None = None


Step = StepEnded | StepWaits

Pause = PendingResult | None
"""Why a guest pauses within a step: for a result, or (``None``) because it may compute for long and
its thread must not be blocked. ``None`` is yielded to, by continuing on a thread that may block."""

QUICK_BYTES: Final = 64 << 10
"""JSON up to this size is read within a millisecond; before more of it, a step pauses."""

StepPauses = Generator[Pause, None, Step]
"""A step in progress."""


class GuestEnvironment(msgspec.Struct):
    """Randomness and time of a guest, derived from a seed. Part of every snapshot."""

    seed: bytes = b""
    drawn: int = 0
    clock_ns: int = 0

    def random_bytes(self, count: int) -> bytes:
        self.drawn += 1
        return shake_256(self.seed + self.drawn.to_bytes(8)).digest(count)

    def read_clock_ns(self) -> int:
        """Read the clock; each reading advances it, so a loop that waits for time ends."""
        self.clock_ns += 1000
        return self.clock_ns

    def advance_clock(self, duration_ns: int) -> None:
        self.clock_ns = min(self.clock_ns + max(duration_ns, 0), (1 << 62) - 1)

    def copy(self) -> GuestEnvironment:
        return GuestEnvironment(self.seed, self.drawn, self.clock_ns)


class Image(msgspec.Struct, frozen=True):
    """A suspended instance: the pages that differ from a new instance, and its environment."""

    memory: bytes
    surroundings: GuestEnvironment


MemoryCopy = Callable[[], Image]
"""A copy of an instance's memory; any thread may compress it to an image."""


class Host(Protocol):
    """The functions that an instance may call during a step. All may raise ``GuestStopped``."""

    def call(self, name: str, arguments: bytes) -> Generator[Pause, None, bytes]:
        """Make a synchronous call: ``{"args", "kwargs"}`` and the ``CallReply`` are JSON."""

    def emit(self, channel: int, text: bytes) -> bool:
        """Write to channel 1 (stdout) or 2 (stderr), or name (3) a file of the run and write its
        content (4) in base64; returns whether to emit more."""

    def watch(self) -> bool:
        """Enforce the limits; called every few milliseconds. Returns whether the guest should
        pause."""


class Instance(Protocol):
    """One interpreter, used by one thread at a time."""

    environment: GuestEnvironment
    fuel_used: int
    """Fuel of the last step."""

    @property
    def has_fibers(self) -> bool:
        """Whether a step pauses for a pending result; otherwise it blocks its thread."""

    @property
    def memory_bytes(self) -> int: ...

    @property
    def own_bytes(self) -> int:
        """The approximate memory that it does not share with other instances of its guest."""

    def limit_memory(self, size_bytes: int) -> None: ...

    def step(self, request: bytes, host: Host) -> StepPauses:
        """Execute one encoded ``StartStep``, ``ResumeStep`` or ``CheckStep``. After
        ``GuestStopped`` this instance is unusable."""

    def copy_memory(self) -> MemoryCopy | None:
        """Copy the memory between two steps; ``None`` if this kind of instance has no images."""

    def load(self, image: Image, /) -> None:
        """Load an image into a new instance."""

    def reset(self) -> bool:
        """Make this a new instance again, for another session; false if it must be closed."""

    def close(self) -> None: ...


class InstanceSource(NamedTuple):
    """Where a session gets its instances."""

    acquire: Callable[[], Instance]
    is_ready: Callable[[], bool]
    """Whether ``acquire`` has an instance that runs on fibers, and need not make one."""
    release: Callable[[Instance], None]
    """Passes an instance on that the session does not use any more."""


class Guest(Protocol):
    """One build of one language's interpreter."""

    language: Language

    @property
    def build(self) -> str:
        """Digest of the build; an image fits only the build that it was taken from."""

    @property
    def start(self) -> int:
        """Checksum of a new instance's memory, which images are relative to. It depends on the
        host, too. 0 if the guest has no images."""

    def instance(self) -> Instance: ...
