"""Drives one run in an instance, from its log first and then with the outside world.

The same code starts a run, continues it and repeats it. While the log has entries, calls get their
recorded results and every digest is checked; after that the host is called and the log grows. A
``GuestRun`` does not change its session: ``Session`` decides what the last step means. Its
generators yield the pauses of the guest; any thread may continue them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from concurrent.futures import Future
from math import ceil
from typing import Any

import msgspec

from rookery.actors.sandbox.contract import (
    QUICK_BYTES,
    AwaitedCall,
    CallReply,
    CallTool,
    Image,
    Instance,
    OnOutput,
    Pause,
    ProgramCall,
    ResumeStep,
    Step,
    StepEnded,
    StepPauses,
    StepStopped,
    StepWaits,
    SuspendedRun,
    Tool,
    ToolResult,
    ignore_output,
    suspend,
)
from rookery.actors.sandbox.runtime.guest_values import argument_problem
from rookery.actors.sandbox.runtime.introspection import (
    INTROSPECTION,
    LIMITS,
    SEARCH,
    ToolDescriptions,
)
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.sessions.meters import PendingAwait, RunMeters, Stopwatch, call_digest
from rookery.actors.sandbox.sessions.run_files import (
    DATA_CHANNEL,
    NAME_CHANNEL,
    WrittenFiles,
    file_error,
    file_steps,
)
from rookery.actors.sandbox.sessions.run_log import (
    LogEntry,
    RecordedResult,
    ResumedCall,
    ResumeEntry,
    RunLog,
    SyncCallEntry,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import ErrorObject, OutputStream

__all__ = ["CallSuspended", "GuestRun", "SavedRun", "execute_to_stop"]

_MIB = 1 << 20
_NS_PER_MS = 1_000_000
_TIMER_S_MAX = 1e9
_CALL_LEVELS = 2
"""Around each argument of a call: the object with ``args``, and the list."""
_PIECE_CHARS_MAX = 8_192
"""Of output; a longer text is several pieces."""
_encode = msgspec.json.encode


class CallSuspended(GuestStopped):
    """A synchronous call must wait. The instance is unusable; the log continues."""

    def __init__(self, call: ProgramCall) -> None:
        super().__init__("SUSPENDED", f"{call.name} is not answered yet")
        self.call = call


class _Arguments(msgspec.Struct, frozen=True):
    args: list[Any]
    kwargs: dict[str, Any]


_arguments = msgspec.json.Decoder(_Arguments).decode


class SavedRun(msgspec.Struct):
    """A run as a snapshot stores it."""

    log: RunLog
    tally: RunMeters
    """The meters where the log begins."""
    image: Image | None = None
    """The memory where the log begins, if that is not the start of the run."""
    waiting: SuspendedRun | None = None
    wall_ns: int = 0
    cpu_ns: int = 0
    return_snapshot: bool = False


class GuestRun:
    """A run and the ``Host`` of its instance."""

    def __init__(
        self,
        saved: SavedRun,
        answer: CallTool = suspend,
        on_output: OnOutput = ignore_output,
        *,
        recorded: bool = False,
    ) -> None:
        """``recorded``: the run ended before, so the limits of time do not apply."""
        self.saved, self.log, self._answer = saved, saved.log, answer
        self._on_output = on_output
        self._is_complete_record = recorded
        self.tally = saved.tally.copy()
        self.stopwatch = Stopwatch(saved.log.limits)
        self.stopwatch.wall_ns, self.stopwatch.cpu_ns = saved.wall_ns, saved.cpu_ns
        self.size_bytes = len(saved.log.program)
        """The approximate memory for its log."""
        self.written = WrittenFiles()
        self.cancelled = False
        self.abandoned = False
        self.blocked_by: GuestRun | None = None
        """The run that waits until this one is repeated."""
        self.blocking_call: ProgramCall | None = None
        """The call that the guest waits for."""
        self.pauses_at_tick = False
        """Whether the thread that executes the guest must not be blocked for long."""
        self.listed_tools = False
        self.held_bytes = 0
        """The guest's memory while its thread is blocked in a call."""
        self.own_bytes = 0
        """The memory that the guest does not share, while it waits for a call."""
        self._instance: Instance | None = None
        self._cursor = self._recorded_count = 0
        self._is_started = saved.image is not None
        self._offered_ids: set[int] = set()
        self._resumed_wait: SuspendedRun | None = None

    # --- execution --------------------------------------------------------------------------

    def execute(self, instance: Instance) -> StepPauses:
        """Execute steps until the program ends or is suspended."""
        self._recorded_count = len(self.log.entries)
        self._instance = instance
        self.stopwatch.begin()
        try:
            self.watch()  # A run may be cancelled before it begins.
            instance.limit_memory(self.log.limits.memory_mb * _MIB)
            step: Step | None = None
            if not self._is_started and self.log.files:
                refused = yield from self._write_files(instance)
                if refused is not None:
                    return refused
            while (request := (yield from self._next_request(instance, step))) is not None:
                step = yield from self._run_step(instance, request)
        finally:
            self.stopwatch.end()
            self._instance = None
        assert step is not None
        return step

    def resume(
        self,
        answers: Mapping[int, ToolResult],
        advance_ms: int,
        answer: CallTool,
        on_output: OnOutput,
    ) -> None:
        """Append results to the log; ``execute`` then passes them to the program."""
        waiting = self.saved.waiting
        assert waiting is not None
        self._answer, self._on_output = answer, on_output
        self._offered_ids.clear()
        calls = {call.id: call for call in waiting.calls}
        for number in answers:
            if number not in calls:
                raise Refused("INPUT_NOT_FOUND", f"the run does not wait for call {number}")
        if any(not call.awaited for call in waiting.calls):
            if not answers:
                raise Refused("INVALID_ARGUMENT", "a synchronous call needs its result")
            (call,) = waiting.calls
            result = RecordedResult.of(answers[call.id])
            self.log.entries.append(SyncCallEntry(call.name, call.digest, result))
        else:
            fed = [_resumed_call(calls[i], RecordedResult.of(a)) for i, a in answers.items()]
            self.log.entries.append(ResumeEntry(fed, advance_ms))
        passed = max((answer.duration_ms for answer in answers.values()), default=0)
        self.stopwatch.count_wall(advance_ms or passed)
        self._resumed_wait, self.saved.waiting = waiting, None

    def undo_resume(self) -> bool:
        """Undo the last ``resume``; returns whether there was one."""
        if self._resumed_wait is None:
            return False
        self.log.entries.pop()
        self.saved.waiting, self._resumed_wait = self._resumed_wait, None
        self.stopwatch.wall_ns, self.stopwatch.cpu_ns = self.saved.wall_ns, self.saved.cpu_ns
        return True

    def checkpoint(self, image: Image) -> None:
        """Restart the log at ``image``."""
        self.saved.image = image
        self.saved.tally = self.tally.copy()
        self.log.entries.clear()
        self._cursor = 0

    def save(self) -> SavedRun:
        watch = self.stopwatch
        self.saved.wall_ns, self.saved.cpu_ns = watch.wall_ns, watch.cpu_ns
        return self.saved

    def suspended_run(self, step: StepWaits) -> SuspendedRun:
        timer_ms = None
        if step.timer_s is not None:
            timer_ms = max(1, ceil(min(step.timer_s, _TIMER_S_MAX) * 1000))
        calls = tuple(open_call.call for open_call in self.tally.open.values())
        return SuspendedRun(calls=calls, timer_ms=timer_ms)

    @property
    def _replaying(self) -> bool:
        return self._cursor < self._recorded_count

    def _next_entry(self) -> LogEntry:
        """The next entry of the log. Time counts from the end of the recorded part."""
        entry = self.log.entries[self._cursor]
        self._cursor += 1
        if self._cursor == self._recorded_count:
            self.stopwatch.begin()
            self.watch()
        return entry

    def _next_request(
        self, instance: Instance, step: Step | None
    ) -> Generator[Pause, None, bytes | None]:
        environment = instance.environment
        if not self._is_started:
            self._is_started = True
            self._begin_clock(instance)
            return self.log.program
        if step is not None and not isinstance(step, StepWaits):
            return None
        if step is not None and not self._replaying:
            if not (calls := (yield from self._immediate_results())):
                return None
            self.log.entries.append(ResumeEntry(calls))
        entry = self._next_entry()
        if not isinstance(entry, ResumeEntry):
            raise _divergence("the program waits where the recorded run continued")
        environment.advance_clock(entry.advance_ms * _NS_PER_MS)
        replies = [self._replayed_reply(call) for call in entry.calls]
        if entry.whole and self.tally.open:
            raise _divergence("the program waits for more calls than were recorded")
        return _encode(ResumeStep(replies=replies))

    def _write_files(self, instance: Instance) -> Generator[Pause, None, StepStopped | None]:
        """Write and remove the files of the request; the end of the run if one is refused, which
        leaves no effects on the session."""
        self._begin_clock(instance)
        for path, data in self.log.files.items():
            for request in file_steps(path, data):
                step = yield from self._take_step(instance, _encode(request))
                if isinstance(step, StepEnded) and step.error is not None:
                    return StepStopped(error=file_error(step.error))
        return None

    def _begin_clock(self, instance: Instance) -> None:
        environment = instance.environment
        environment.advance_clock(self.log.now_ns - environment.clock_ns)

    def _take_step(self, instance: Instance, request: bytes) -> StepPauses:
        try:
            return (yield from self._counting_cpu(instance.step(request, self)))
        finally:
            self.tally.fuel += instance.fuel_used
            self.tally.memory_bytes = max(self.tally.memory_bytes, instance.memory_bytes)

    def _run_step(self, instance: Instance, request: bytes) -> StepPauses:
        step = yield from self._take_step(instance, request)
        if isinstance(step, StepWaits):
            for new in step.calls:
                self._open_call(new)
            outstanding = set(step.outstanding)
            self._drop_calls([i for i, o in self.tally.open.items() if o.number not in outstanding])
            if not self.tally.open:
                raise GuestStopped("RUNTIME_ERROR", "the program waits for nothing")
        elif self._replaying:
            raise _divergence("the program ended where the recorded run continued")
        else:
            self._drop_calls(list(self.tally.open))
        return step

    def _counting_cpu(self, steps: StepPauses) -> StepPauses:
        """Count the CPU time of every thread that executes the step."""
        while True:
            try:
                pause = next(steps)
            except StopIteration as end:
                step: Step = end.value
                return step
            self.stopwatch.leave_thread()
            yield pause
            self.stopwatch.enter_thread()

    # --- the host of the instance -----------------------------------------------------------

    def call(self, name: str, arguments: bytes) -> Generator[Pause, None, bytes]:
        if len(arguments) > QUICK_BYTES:
            yield None
        problem = argument_problem(arguments, _CALL_LEVELS)
        if problem is not None and arguments.endswith(b"}"):
            return _encode(CallReply(error=ToolFault("INVALID_ARGUMENT", problem)))
        try:
            given = _arguments(arguments)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise GuestStopped("RUNTIME_ERROR", f"unreadable arguments: {error}") from None
        if name == LIMITS:
            return _encode(CallReply(value=self.log.limits))
        if name in INTROSPECTION or (name == SEARCH.name and self.log.has_search):
            return _encode(self._tool_descriptions().reply_to(name, given.args, given.kwargs))
        tool = self.log.tools.get(name)
        if tool is None or tool.awaited:
            failure = ToolFault("UNKNOWN_TOOL", f"there is no synchronous tool {name[:80]!r}")
            return _encode(CallReply(error=failure))
        call = self._new_call(tool, given.args, given.kwargs)
        if self._replaying:
            result = self._recorded_result(call)
        else:
            result = yield from self._call_tool(call)
            self.log.entries.append(SyncCallEntry(name, call.digest, result))
            self._cursor += 1
        return _encode(self._reply(call, result))

    def emit(self, channel: int, text: bytes) -> bool:
        if channel in (NAME_CHANNEL, DATA_CHANNEL):
            return self.written.add(channel, text)
        tally, stream = self.tally, OutputStream.STDERR if channel == 2 else OutputStream.STDOUT
        added = tally.emit(stream, text, self.log.limits.max_stdout_bytes).decode(errors="replace")
        for start in range(0, len(added), _PIECE_CHARS_MAX):
            tally.pieces += 1
            if not self._replaying:
                piece = added[start : start + _PIECE_CHARS_MAX]
                self._on_output(tally.pieces, stream, piece)
        return stream not in tally.cut

    def watch(self) -> bool:
        """Enforce the limits on new work; the recorded part was within them."""
        waits_cancelled = self.blocked_by is not None and self.blocked_by.cancelled
        if self.cancelled or self.abandoned or waits_cancelled:
            raise GuestStopped("CANCELLED", "the run was cancelled")
        if not (self._replaying or self._is_complete_record):
            self.stopwatch.check()
        return self.pauses_at_tick

    # --- calls ------------------------------------------------------------------------------

    def _tool_descriptions(self) -> ToolDescriptions:
        """The descriptions of the log, or of the run's tools if the log has none."""
        self.listed_tools = True
        if self.log.catalogue is None:
            if self._replaying or self._is_complete_record:
                raise _divergence("the program lists its tools, and the recorded run did not")
            self.log.catalogue = ToolDescriptions.shared(self.log.tools)
            self.size_bytes += self.log.catalogue.size_bytes
        return self.log.catalogue

    def _new_call(self, tool: Tool, args: list[Any], kwargs: dict[str, Any]) -> ProgramCall:
        count, limit = self.tally.calls_started + 1, self.log.limits.max_external_calls
        if count > limit:
            raise GuestStopped("EXTERNAL_CALLS_EXCEEDED", f"the run may make {limit} calls")
        self.tally.calls_started = count
        return ProgramCall(
            id=count,
            name=tool.name,
            args=args,
            kwargs=kwargs,
            awaited=tool.awaited,
            digest=call_digest(args, kwargs),
        )

    def _open_call(self, new: AwaitedCall) -> None:
        tool = self.log.tools.get(new.name)
        if tool is None or not tool.awaited:
            raise GuestStopped("RUNTIME_ERROR", f"there is no awaited tool {new.name[:80]!r}")
        if problem := argument_problem(_encode([new.args, new.kwargs]), _CALL_LEVELS):
            raise GuestStopped("INVALID_ARGUMENT", f"{new.name}: {problem}")
        call = self._new_call(tool, new.args, new.kwargs)
        self.tally.open[call.id] = PendingAwait(new.id, call)

    def _drop_calls(self, numbers: list[int]) -> None:
        for number in numbers:
            call = self.tally.open.pop(number).call
            self.tally.record_dropped(call, self.log.tools[call.name])

    def _recorded_result(self, call: ProgramCall) -> RecordedResult:
        entry = self._next_entry()
        call_key = (call.name, call.digest)
        if not isinstance(entry, SyncCallEntry) or (entry.name, entry.digest) != call_key:
            raise _divergence(f"call {call.id} is {call.name}, which differs from the record")
        return entry.told

    def _call_tool(self, call: ProgramCall) -> Generator[Pause, None, RecordedResult]:
        """Call the host. This counts as time of the run; the watchdog ends the run after it."""
        is_late = False
        self.stopwatch.enter_host()
        if self._instance is not None:
            self.held_bytes = self._instance.memory_bytes
            self.own_bytes = self._instance.own_bytes
        self.blocking_call = call
        try:
            answer = self._answer(call)
            if isinstance(answer, Future):
                if not answer.done():
                    yield answer
                is_late = not answer.done()
                answer = None if is_late or answer.cancelled() else answer.result()
            result = None if answer is None else RecordedResult.of(answer)
        except GeneratorExit:
            raise
        except BaseException as bug:
            raise GuestStopped("RUNTIME_ERROR", f"a host function failed: {bug!r}") from None
        finally:
            self.blocking_call = None
            duration_ms = self.stopwatch.leave_host()
        if is_late:
            self.tally.record_timeout(call, self.log.tools[call.name])
            self.watch()  # Raises, because the run was continued to be ended.
        if self.abandoned or is_late:
            raise GuestStopped("CANCELLED", "the run ended before this result")
        if result is None:
            raise CallSuspended(call)
        if self.stopwatch.wall_is_over:
            self.tally.record_timeout(call, self.log.tools[call.name])
            self.stopwatch.check()
        if not result.duration_ms and duration_ms:
            return msgspec.structs.replace(result, duration_ms=duration_ms)
        return result

    def _immediate_results(self) -> Generator[Pause, None, list[ResumedCall]]:
        answered = []
        for open_call in list(self.tally.open.values()):
            call = open_call.call
            if call.id not in self._offered_ids:
                self._offered_ids.add(call.id)
                try:
                    result = yield from self._call_tool(call)
                    answered.append(_resumed_call(call, result))
                except CallSuspended:
                    continue
        return answered

    def _replayed_reply(self, resumed: ResumedCall) -> tuple[int, CallReply]:
        open_call = self.tally.open.pop(resumed.id, None)
        call_key = None if open_call is None else (open_call.call.name, open_call.call.digest)
        if open_call is None or call_key != (resumed.name, resumed.digest):
            raise _divergence(f"call {resumed.id} differs from the record")
        return open_call.number, self._reply(open_call.call, resumed.told)

    def _reply(self, call: ProgramCall, result: RecordedResult) -> CallReply:
        self.size_bytes += len(result.value)
        self.tally.record_result(call, result, self.log.tools[call.name])
        if result.error is not None:
            return CallReply(error=result.error)
        return CallReply(value=msgspec.Raw(result.value))


def execute_to_stop(
    run: GuestRun, instance: Instance
) -> Generator[Pause, None, Step | CallSuspended]:
    """``execute``, but a suspension or a stop is returned instead of raised."""
    try:
        return (yield from run.execute(instance))
    except CallSuspended as suspended:
        return suspended
    except GuestStopped as stopped:
        if stopped.code == "REPLAY_DIVERGED":
            raise Failed("REPLAY_DIVERGED", stopped.message) from None
        code, message, hint = stopped.code, stopped.message, stopped.hint
        return StepStopped(error=ErrorObject(code=code, message=message, hint=hint))


def _resumed_call(call: ProgramCall, result: RecordedResult) -> ResumedCall:
    return ResumedCall(call.id, call.name, call.digest, result)


def _divergence(message: str) -> GuestStopped:
    return GuestStopped("REPLAY_DIVERGED", message)
