"""The TypeScript guest: it translates programs, runs them in the engine, and reads its errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Container
from functools import cached_property, partial
from typing import NamedTuple

import msgspec

from rookery.actors.sandbox.contract import (
    QUICK_BYTES,
    CheckStep,
    FilesStep,
    Host,
    StartStep,
    Step,
    StepEnded,
    StepPauses,
)
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.runtime.guest_values import (
    StepReply,
    bounded_error,
    deep_value_error,
    ended_step,
    is_too_deep,
)
from rookery.actors.sandbox.runtime.image_guest import ImageInstance
from rookery.actors.sandbox.runtime.memory_image import Pristine
from rookery.actors.sandbox.runtime.wasm import PAGE_BYTES, Engine, GuestStopped
from rookery.actors.sandbox.typescript.build import JavaScriptBuild
from rookery.actors.sandbox.typescript.engine import JavaScriptEngine, JavaScriptStore
from rookery.actors.sandbox.typescript.syntax import WatchFunction, offset_of
from rookery.actors.sandbox.typescript.transformer import Transformer
from rookery.actors.sandbox.typescript.translation import Script, SourceRefused, translate
from rookery.schemas.run import ErrorObject, Language, Span

__all__ = [
    "EngineReply",
    "JavaScriptGuest",
    "JavaScriptInstance",
    "read_reply",
    "to_step",
]

# --- errors ---------------------------------------------------------------------------------------

# Reads the replies of the engine, and converts errors to code, message and span.
#
# The engine counts lines and columns in the evaluated script; the spans are in the program's own
# source of the present run.


_STACK_FRAME = re.compile(r"^    at (?:.* \()?([\w-]{11}):(\d{1,7}):(\d{1,7})\)?$", re.MULTILINE)
_NO_SPACE_FOR_ERROR = "thrown: null"
"""What the engine throws where it has no memory for an error, and programs hardly ever."""
_NO_SPACE_IN_EXPRESSION = "SyntaxError: out of memory"
_UNKNOWN = re.compile(r"^ReferenceError: (\S{1,200}) is not defined$")


class EngineReply(StepReply):
    """A value, an error, or the calls that the run waits for."""

    stack: str = ""
    source: str = ""
    """The source of the run that ended with this error; ``stack`` belongs to errors, too."""


_decode_reply = msgspec.json.Decoder(EngineReply).decode


def read_reply(reply: str) -> EngineReply:
    """Decode a reply. A hostile program may have forged it."""
    encoded = reply.encode()
    if is_too_deep(encoded):
        return EngineReply(error=deep_value_error(encoded))
    try:
        return _decode_reply(encoded)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None


def to_step(reply: EngineReply, script: Script | None, script_name: str) -> Step:
    """The step in a reply; ``script`` is the executed script, for the span of an error."""
    if reply.waits is not None:
        return reply.waits
    if reply.error is None:
        return ended_step(reply)
    code, message, hint, _ = msgspec.structs.astuple(bounded_error(reply.error))
    span = None if script is None else _span(reply, script, script_name)
    if code == "SYNTAX_ERROR":
        message = message.removeprefix("SyntaxError: ")
        if script is not None:
            code = code if script.is_understood else "UNSUPPORTED_FEATURE"
            span = span and _line(span, script.source)
    return StepEnded(error=ErrorObject(code=code, message=message, hint=hint, span=span))


def _line(span: Span, source: str) -> Span:
    """The span of a whole line: the engine reports only the line of a syntax error."""
    text = source.split("\n")[span.line - 1].rstrip()
    start = len(text) - len(text.lstrip())
    return Span(line=span.line, column=start + 1, end_line=span.line, end_column=len(text) + 1)


def _span(reply: EngineReply, script: Script, script_name: str) -> Span | None:
    """The innermost frame in the present source. For an unknown name the engine reports the start
    of the enclosing expression, so the name is searched from there."""
    for name, line, column in _STACK_FRAME.findall(reply.stack):
        if name == script_name:
            position = offset_of(script.text, int(line) - 1, int(column))
            if reply.error is not None and (unknown := _UNKNOWN.search(reply.error.message)):
                word = re.compile(rf"(?<![\w$]){re.escape(unknown[1])}(?![\w$])")
                found = word.search(script.text, position)
                position = found.start() if found else position
            return script.span(position)
    return None


# --- guest ----------------------------------------------------------------------------------------

# It passes the requests and replies of steps through the prelude. Its instances have images.


_encode = msgspec.json.encode
_QUICK_SOURCE_CHARS = 2_000
"""The length of programs that are translated within a millisecond or two."""


class _Resumption(msgspec.Struct, frozen=True, tag="resume", tag_field="step"):
    """A ``ResumeStep`` whose replies are passed on undecoded."""

    replies: msgspec.Raw


class _Anything:
    """The tools of a program that was checked before: any name."""

    def __contains__(self, _name: object) -> bool:
        return True


class _Compiled(NamedTuple):
    engine: JavaScriptEngine
    transformer: Transformer
    edition: int


_decode = msgspec.json.Decoder(StartStep | CheckStep | FilesStep | _Resumption).decode


class JavaScriptGuest:
    """One build in a process; compiled when the first instance is made."""

    language = Language.TYPESCRIPT

    def __init__(
        self,
        engine: Engine,
        cache: GuestCache,
        read: Callable[[], JavaScriptBuild] | None = None,
    ) -> None:
        """``read`` returns the build, by default the installed one."""
        self._engine, self._cache = engine, cache
        self._load_build = read or partial(JavaScriptBuild.installed, cache)
        self._compiling = threading.RLock()
        self._parts: _Compiled | None = None
        self._pristine: Pristine | None = None

    @cached_property
    def build(self) -> str:
        return self._load_build().digest

    @property
    def start(self) -> int:
        return self.pristine.checksum

    def instance(self) -> JavaScriptInstance:
        return JavaScriptInstance(self)

    def transform(self, source: bytes, watch: WatchFunction) -> str:
        return self._compile().transformer.transform(source, watch)

    def translate(self, source: str, tools: Container[str], watch: WatchFunction) -> Script:
        """Translate a program by the edition of this build."""
        return translate(source, tools, self.transform, watch, edition=self._compile().edition)

    def new_store(self) -> JavaScriptStore:
        return JavaScriptStore(self._compile().engine)

    @property
    def pristine(self) -> Pristine:
        with self._compiling:
            if self._pristine is None:
                store = self.new_store()
                self._pristine = Pristine(store, store.global_values())
            return self._pristine

    def _compile(self) -> _Compiled:
        with self._compiling:
            if self._parts is None:
                made = self._load_build()
                self._cache.store(made.piece)
                sources = {0: made.engine, 1: made.transformer}
                modules = self._cache.modules(self._engine, sources, "TypeScript")
                engine = JavaScriptEngine(
                    self._engine, modules[0], made.prelude, made.parts, made.edition
                )
                JavaScriptStore(engine).prove_limits()
                self._parts = _Compiled(engine, Transformer(self._engine, modules[1]), made.edition)
            return self._parts


class JavaScriptInstance(ImageInstance[JavaScriptStore]):
    """One interpreter. Its state is its memory; the script is cached."""

    _guest: JavaScriptGuest

    def __init__(self, guest: JavaScriptGuest) -> None:
        super().__init__(guest)
        self._script: Script | None = None

    def step(self, request: bytes, host: Host) -> StepPauses:
        store = self._wasm_store
        store.host, store.watch = host, host.watch
        store.refuel()
        self.is_between_steps = False
        try:
            ended = yield from self._step(request, host)
        except SourceRefused as refused:  # While the engine is idle.
            self.is_between_steps = True
            return StepEnded(error=refused.error)
        finally:
            self.fuel_used = store.fuel_used
        self.is_between_steps = True
        return ended

    def reset(self) -> bool:
        self._script = None
        return super().reset()

    def _step(self, request: bytes, host: Host) -> StepPauses:
        step = _decode(request)
        if isinstance(step, StartStep):
            return (yield from self._run(step, host))
        if isinstance(step, CheckStep):
            return (yield from self._check(step, host))
        if isinstance(step, FilesStep):
            return (yield from self._serve_files(request))
        yield from self._wasm_store.call_method("settle", bytes(step.replies).decode())
        return (yield from self._pump(host))

    def _run(self, program: StartStep, host: Host) -> StepPauses:
        store = self._wasm_store
        if len(program.code) > _QUICK_SOURCE_CHARS:
            yield None  # Translating takes long and cannot pause.
        script = self._guest.translate(program.code, program.tools, host.watch)
        self._script = script
        begin = {
            "tools": _encode(program.tools).decode(),
            "inputs": program.inputs,
            "assigned": script.assigned,
            "renewed": script.renewed,
            "last": script.ends_with_value,
            "source": program.code,
        }
        if problem := (yield from store.call_method("begin", _encode(begin).decode())):
            return self._read_reply(problem, host)
        store.frames_left = program.depth
        store.name_next_script()
        begun, handle = yield from store.evaluate(f"\n{script.text}")
        if not begun:
            return self._read_reply((yield from store.call_with_handle("refuse", handle)), host)
        yield from store.call_with_handle("watch", handle)
        return (yield from self._pump(host))

    def _check(self, check: CheckStep, host: Host) -> StepPauses:
        script = self._guest.translate(check.code, check.tools, host.watch)
        self._script = script
        self._wasm_store.name_next_script()
        error = yield from self._wasm_store.compile(f"\n{script.text}")
        if error is None:
            return StepEnded()
        refusal = yield from self._wasm_store.call_with_handle("refuse", error)
        return self._read_reply(refusal, host)

    def _serve_files(self, request: bytes) -> StepPauses:
        if not self._wasm_store.has_files:
            text = "the guest knows no step with files"
            return StepEnded(error=ErrorObject(code="RUNTIME_ERROR", message=text))
        if len(request) > QUICK_BYTES:
            yield None
        reply = yield from self._wasm_store.call_method("files", request.decode())
        return to_step(read_reply(reply), None, "")

    def _pump(self, host: Host) -> StepPauses:
        """Run jobs and timers until the program ends or is suspended."""
        while True:
            yield from self._wasm_store.run_jobs()
            if reply := (yield from self._wasm_store.call_method("pump")):
                if len(reply) > QUICK_BYTES:
                    yield None
                return self._read_reply(reply, host)
            yield from self._wasm_store.run_timer()

    def _read_reply(self, reply: str, host: Host) -> Step:
        decoded = read_reply(reply)
        if decoded.error is not None and self._is_out_of_memory(decoded.error):
            failure = msgspec.structs.replace(
                decoded.error, code="MEMORY_EXCEEDED", message="out of memory"
            )
            decoded = msgspec.structs.replace(decoded, error=failure)
        if decoded.error is not None and self._script is None:  # The run began in another instance.
            self._script = self._guest.translate(decoded.source, _Anything(), host.watch)
        return to_step(decoded, self._script, self._wasm_store.script_name)

    def _is_out_of_memory(self, error: ErrorObject) -> bool:
        """Whether the engine had no memory for the error that says it, or an expression none."""
        store = self._wasm_store
        is_full = store.memory_bytes_max - store.size < PAGE_BYTES
        return error.message == _NO_SPACE_IN_EXPRESSION or (
            is_full and error.message == _NO_SPACE_FOR_ERROR
        )
