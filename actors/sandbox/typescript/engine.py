"""The JavaScript engine: QuickJS of the quickjs-rs wheel, called through its module's exports.

It manages handles, strings and the number of stack frames that a program may use.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

import wasmtime

from rookery.actors.sandbox.contract import Pause
from rookery.actors.sandbox.python import GuestCache, function_inliner, module_format
from rookery.actors.sandbox.python.function_inliner import inline_functions
from rookery.actors.sandbox.runtime.image_guest import GuestStore
from rookery.actors.sandbox.runtime.suspension import (
    SuspendableFunction,
    SuspendingLinker,
    complete,
)
from rookery.actors.sandbox.runtime.wasm import (
    Engine,
    Extern,
    Externs,
    GuestStopped,
    PreparedFunction,
)
from rookery.actors.sandbox.typescript import frame_counter
from rookery.actors.sandbox.typescript.frame_counter import FRAMES_AT, STACK_LIMIT_AT, count_frames
from rookery.actors.sandbox.typescript.host_functions import (
    SUSPENDING,
    host_calls_of,
    host_function_for,
    make_host_call,
)
from rookery.schemas.errors import Failed

__all__ = ["JavaScriptEngine", "JavaScriptStore", "engine_bytes", "parts", "prelude"]

_SCRATCH_BYTES = 64
_FRAMES_OFFSET = 32
"""Offset of the number of frames left, in the scratch memory."""
_BYTES_OFFSET = 40
"""Offset of three words that describe bytes in a host function, during calls of the prelude."""
_STACK_BYTES: Final = (1 << 20) - 0x5A3D
"""Set once, to find the address at which the engine stores it; the engine does not enforce it."""
_STACK_TOP_BYTES = 1 << 12
"""The distance between the start of the stack and the top that the engine reads."""
_OWN_FRAMES = 1000
"""Frames for the prelude's own work."""
_SIX_FRAMES = "(function nest(n) { if (n) nest(n - 1) })(5)"
_CHANGED_BY = (frame_counter, function_inliner, module_format)
"""The modules that change the engine of the wheel."""
_SHORT_BYTES = 4096
"""Texts up to this length use a fixed buffer, longer ones an allocated one."""
_SCRIPT_NAME: Final = b"eval_script"
"""The engine's name for every source; this module finds its address in memory."""
_PRELUDE_NAME: Final = b"rookery-api"
_RUN_NAME: Final = "run-%07d"
_PROGRAM_EXPORTS = frozenset(("call_function", "eval_async", "eval_code", "execute_pending_jobs"))
"""The exports that execute code of programs. All others must not: the program could call a tool
where the guest cannot be suspended."""
_METHODS = ("begin", "watch", "settle", "pump", "fire", "refuse")
_FILES = "files"
"""The method of the prelude that edition 3 added."""
_FILES_EDITION = 3
_OK = 0
_word = struct.Struct("<i")


def engine_bytes(cache: GuestCache | None = None) -> bytes:
    """The engine of the wheel, changed. The changes take 0.2 s, so a cache keeps their result."""
    wheel = files("quickjs_rs").joinpath("_guest.wasm").read_bytes()
    if cache is None:
        return _changed(wheel)
    sources = [Path(module.__file__ or "").read_bytes() for module in _CHANGED_BY]
    return cache.made_of(b"\0".join((wheel, *sources)), lambda: _changed(wheel))


def _changed(wheel: bytes) -> bytes:
    return inline_functions(count_frames(wheel))


def prelude() -> str:
    """The source of the prelude, made of two files."""
    folder = Path(__file__).with_name("guest_js")
    text, session = ((folder / name).read_text() for name in ("text.js", "session.js"))
    return f"({session})({{plain: ({text})(), ...__host}})"


def parts() -> dict[str, str]:
    """By name: the parts of the prelude that are evaluated when a program first needs them."""
    folder = Path(__file__).with_name("guest_js")
    files = {path.stem: path for path in sorted(folder.glob("*.js"))}
    return {name: files[name].read_text() for name in files if name not in ("session", "text")}


class EngineAddresses(NamedTuple):
    """Addresses in the engine's memory of values that it has no function to set."""

    script_name: int
    stack_limit: int


class JavaScriptEngine:
    """The module and its host functions, once a process."""

    addresses: EngineAddresses | None = None

    def __init__(
        self,
        engine: Engine,
        module: wasmtime.Module,
        prelude: str,
        parts: Mapping[str, str],
        edition: int,
    ) -> None:
        self.engine, self.module, self.prelude, self.parts = engine, module, prelude, parts
        self.edition = edition
        self.linker = SuspendingLinker(engine)
        self.imports: list[tuple[bytes, bytes]] = []
        for wanted in module.imports:
            name = wanted.module.encode(), (wanted.name or "").encode()
            if wanted.name == SUSPENDING:
                self.linker.define_suspending(*name, wanted.type, make_host_call)
            else:
                self.linker.define(*name, wanted.type, host_function_for(wanted.name or ""))
            self.imports.append(name)
        self.kinds = {
            export.name: (len(export.type.params), len(export.type.results))
            for export in module.exports
            if isinstance(export.type, wasmtime.FuncType)
            and all(str(kind) == "i32" for kind in export.type.params)
        }
        self.mutable_globals = [
            export.name
            for export in module.exports
            if isinstance(export.type, wasmtime.GlobalType) and export.type.mutable
        ]


class JavaScriptStore(GuestStore):
    """A store with an engine that has evaluated the prelude."""

    needs_copies = True

    def __init__(self, engine: JavaScriptEngine) -> None:
        super().__init__(engine.engine)
        self._engine, self._kinds, self.parts = engine, engine.kinds, engine.parts
        self._functions: dict[str, PreparedFunction] = {}
        self._program_functions: dict[str, SuspendableFunction] = {}
        wanted = Externs(len(engine.imports))
        for place, (module, name) in enumerate(engine.imports):
            engine.linker.fetch(self, module, name, wanted, place)
        self._instance = self.instantiate(engine.module, wanted)
        state = Externs(2)
        self.fetch(self._instance, b"memory", state, 0)
        self.fetch(self._instance, b"__stack_pointer", state, 1)
        self.use(state.array[0], state.array[1])
        self._externs = [state]
        self._boot(engine.prelude)

    def mutable_externs(self) -> tuple[Externs, Externs]:
        """No table is exported, and none can change: the engine of quickjs-rs 0.2.6, disassembled,
        has no ``table.set``, ``grow``, ``fill``, ``copy`` or ``init``."""
        names = [(self._instance, name) for name in self._engine.mutable_globals]
        return self.fetch_named(names), Externs(0)

    def prove_limits(self) -> None:
        """Check that the engine counts frames; the store is unusable after that."""
        for frames, fits in ((7, True), (6, False)):  # The script itself has one.
            self.frames_left = frames
            status, _ = complete(self._evaluate("eval_code", _SIX_FRAMES))
            if (status == _OK) is not fits:
                raise Failed("GUEST_BUILD_FAILED", "the JavaScript engine does not count frames")

    @property
    def frames_left(self) -> int:
        """The number of frames left. It is in the guest's memory, so an image includes it."""
        return int(_word.unpack(self.read(self._frames_at, 4))[0])

    @frames_left.setter
    def frames_left(self, frames: int) -> None:
        self.write(self._frames_at, _word.pack(frames))

    @property
    def has_files(self) -> bool:
        """Whether sessions of this edition have files."""
        return self._engine.edition >= _FILES_EDITION

    # --- parts of a step ------------------------------------------------------------------------

    def call_method(self, method: str, *texts: str) -> Generator[Pause, None, str]:
        """Call a method of the prelude with texts; returns its text."""
        with self._prelude_frames():
            handles = [self.text(text) for text in texts]
            handle = yield from self._call_prelude(method, handles)
            for argument in handles:
                self._call_export("free_value", argument)
            return self._consume_text(handle)

    def call_with_handle(self, method: str, handle: int) -> Generator[Pause, None, str]:
        """Call a method of the prelude with a value, and free the value."""
        with self._prelude_frames():
            result = yield from self._call_prelude(method, [handle])
        self._call_export("free_value", handle)
        return self._consume_text(result)

    def run_timer(self) -> Generator[Pause, None, None]:
        """Run the timer that is due; its frames count as the program's."""
        self._call_export("free_value", (yield from self._call_prelude("fire", [])))

    def evaluate(self, code: str) -> Generator[Pause, None, tuple[bool, int]]:
        """Start a program: true and its promise, or false and its error."""
        status, handle = yield from self._evaluate("eval_async", code)
        return (True, handle) if status == _OK else (False, self._last_exception())

    def compile(self, code: str) -> Generator[Pause, None, int | None]:
        """Compile a program without running it; returns its error, if any."""
        status, handle = yield from self._evaluate("eval_code", f"(async()=>{{{code}\n}})")
        if status != _OK:
            return self._last_exception()
        self._call_export("free_value", handle)
        return None

    def run_jobs(self) -> Generator[Pause, None, None]:
        """Run all pending jobs of the engine."""
        yield from self._call_program("execute_pending_jobs")

    @property
    def script_name(self) -> str:
        """The name of the last evaluated source. It is in the guest's memory."""
        return self.read(self._name_at, len(_SCRIPT_NAME)).decode(errors="replace")

    def name_next_script(self) -> None:
        last = self.script_name[-7:]
        number = int(last) + 1 if last.isdecimal() else 1
        self.write(self._name_at, (_RUN_NAME % (number % 10**7)).encode())

    # --- values ---------------------------------------------------------------------------------

    def text(self, text: str) -> int:
        data = text.encode()
        if len(data) <= _SHORT_BYTES:
            self.write(self._short, data)
            return self._call_export("new_string", self._short, len(data))
        with self._bytes(data) as (pointer, length):
            return self._call_export("new_string", pointer, length)

    def read_text(self, handle: int) -> str:
        if self._call_export("get_string", handle) != _OK:
            return ""
        length = self._call_export("qjs_last_len")
        text = self.read(self._call_export("qjs_last_ptr"), length)
        if length > _SHORT_BYTES:
            self._call_export("qjs_result_free")
        return text.decode(errors="replace")

    def bytes_value(self, data: bytes) -> int:
        """A new ``Uint8Array``."""
        at = self._scratch + _BYTES_OFFSET
        with self._bytes(data) as (pointer, length):
            if self._call_export("new_uint8array", pointer, length, at) != _OK:
                text = f"{length} bytes do not fit into the memory of the program"
                raise GuestStopped("MEMORY_EXCEEDED", text)
        return int(_word.unpack(self.read(at, 4))[0])

    def read_bytes(self, handle: int) -> bytes:
        """The bytes that a ``Uint8Array`` shows."""
        at = self._scratch + _BYTES_OFFSET
        if self._call_export("get_typed_array_buffer", handle, at, at + 4, at + 8) != _OK:
            raise GuestStopped("RUNTIME_ERROR", "the guest passed no bytes")
        length = self._call_export("qjs_last_len")
        data = self.read(self._call_export("qjs_last_ptr"), length) if length else b""
        self._call_export("qjs_result_free")
        return data

    def emit(self, channel: int, text: bytes) -> bool:
        return self.host.emit(channel, text)

    @contextmanager
    def _prelude_frames(self) -> Iterator[None]:
        """Give the prelude its own frames; they do not count as the program's."""
        left, self.frames_left = self.frames_left, _OWN_FRAMES
        yield
        self.frames_left = left

    def _consume_text(self, handle: int) -> str:
        text = self.read_text(handle)
        self._call_export("free_value", handle)
        return text

    def _call_prelude(self, method: str, handles: list[int]) -> Generator[Pause, None, int]:
        self.write(self._scratch + 4, struct.pack(f"<{len(handles)}i", *handles))
        status = yield from self._call_program(
            "call_function",
            self._methods[method],
            self._undefined,
            self._scratch + 4,
            len(handles),
            self._scratch,
        )
        if status != _OK:
            if method == "refuse" and self.size > self.memory_bytes_max // 2:
                raise GuestStopped("MEMORY_EXCEEDED", "there is no memory to describe the error")
            error = ""
            if method != "refuse":
                error = self._consume_text((yield from self._describe_error()))
            raise GuestStopped("RUNTIME_ERROR", f"the engine failed in {method}: {error[:200]}")
        return self._output_handle()

    def _describe_error(self) -> Generator[Pause, None, int]:
        return (yield from self._call_prelude("refuse", [self._last_exception()]))

    def _evaluate(self, how: str, code: str) -> Generator[Pause, None, tuple[int, int]]:
        with self._bytes(code.encode()) as (pointer, length):
            status = yield from self._call_program(how, pointer, length, self._scratch)
            return status, self._output_handle()

    def _last_exception(self) -> int:
        self._call_export("last_exception", self._scratch)
        return self._output_handle()

    def _output_handle(self) -> int:
        """The handle that the last call returned."""
        return int(_word.unpack(self.read(self._scratch, 4))[0])

    @contextmanager
    def _bytes(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Copy bytes into the guest for the block. Not freed if the engine stops."""
        pointer = self._call_export("qjs_alloc", len(data))
        if not pointer and data:
            text = f"{len(data)} bytes for the program do not fit into its memory"
            raise GuestStopped("MEMORY_EXCEEDED", text)
        self.write(pointer, data)
        yield pointer, len(data)
        self._call_export("qjs_free", pointer, len(data))

    def _call_export(self, name: str, *arguments: int) -> int:
        function = self._functions.get(name)
        if function is None:
            assert name not in _PROGRAM_EXPORTS
            function = PreparedFunction(self, self._export(name), *self._kinds[name])
            self._functions[name] = function
        return function(*arguments)

    def _call_program(self, name: str, *arguments: int) -> Generator[Pause, None, int]:
        function = self._program_functions.get(name)
        if function is None:
            function = SuspendableFunction(self, self._export(name), *self._kinds[name])
            self._program_functions[name] = function
        return (yield from function.steps(*arguments))

    def _export(self, name: str) -> Extern:
        found = Externs(1)
        self.fetch(self._instance, name.encode(), found, 0)
        self._externs.append(found)
        return found.array[0]

    # --- the prelude ----------------------------------------------------------------------------

    def _boot(self, prelude: str) -> None:
        self._scratch = self._call_export("qjs_alloc", _SCRATCH_BYTES)
        self._short = self._call_export("qjs_alloc", _SHORT_BYTES)
        self._undefined = self._call_export("new_undefined")
        self._call_export("set_max_stack_size", _STACK_BYTES)
        places = self._find_addresses()
        self._count_frames(places.stack_limit)
        self._name_at = places.script_name
        self.write(self._name_at, _PRELUDE_NAME)
        bridge, world = self._call_export("new_object"), self._call_export("global_object")
        for name in host_calls_of(self._engine.edition):
            with self._bytes(name.encode()) as (pointer, length):
                self._set(bridge, name, self._call_export("new_function", pointer, length))
        self._set(world, "__host", bridge)
        status, session = complete(self._evaluate("eval_code", prelude))
        if status != _OK:
            raise Failed("GUEST_BUILD_FAILED", "the prelude of the JavaScript guest failed")
        names = (*_METHODS, _FILES) if self.has_files else _METHODS
        self._methods = {name: self._get(session, name) for name in names}
        _, deleted = complete(self._evaluate("eval_code", "delete globalThis.__host"))
        for handle in (world, session, deleted):
            self._call_export("free_value", handle)

    def _count_frames(self, stack_limit_at: int) -> None:
        self._frames_at = self._scratch + _FRAMES_OFFSET
        self.frames_left = _OWN_FRAMES
        counting = Externs(2)
        places = {FRAMES_AT: self._frames_at, STACK_LIMIT_AT: stack_limit_at}
        for place, (name, at) in enumerate(places.items()):
            self.fetch(self._instance, name.encode(), counting, place)
            self.set_value(counting.array[place], at)
        self._externs.append(counting)

    def _find_addresses(self) -> EngineAddresses:
        """Search the memory once: all new stores are equal at this point."""
        if self._engine.addresses is None:
            memory = self.read(0, self.size)
            limits = self._stack_limits(memory)
            names = _occurrences(memory, _SCRIPT_NAME)
            if len(limits) != 1 or len(names) != 1:
                raise Failed("GUEST_BUILD_FAILED", "the JavaScript engine is not the one expected")
            self._engine.addresses = EngineAddresses(script_name=names[0], stack_limit=limits[0])
        return self._engine.addresses

    def _stack_limits(self, memory: bytes) -> list[int]:
        """Addresses of a zero limit that follows the stack's size and its top."""
        found = []
        for at in _occurrences(memory, struct.pack("<I", _STACK_BYTES)):
            _, top, limit = struct.unpack_from("<3I", memory, at)
            if 0 <= self.stack_pointer - top < _STACK_TOP_BYTES and limit == 0:
                found.append(at + 8)
        return found

    def _set(self, handle: int, name: str, value: int) -> None:
        with self._bytes(name.encode()) as (pointer, length):
            self._call_export("set_prop", handle, pointer, length, value)
        self._call_export("free_value", value)

    def _get(self, handle: int, name: str) -> int:
        with self._bytes(name.encode()) as (pointer, length):
            self._call_export("get_prop", handle, pointer, length, self._scratch)
        return self._output_handle()


def _occurrences(memory: bytes, what: bytes) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(what), memory)]
