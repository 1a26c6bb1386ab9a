"""QuickJS as the quickjs-rs wheel ships it, driven through the functions its module exports.

Owns handles, strings on their way in and out, and what the engine may ask of its host: a clock,
randomness, output, tool calls. Knows neither TypeScript nor sessions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import wasmtime

from rookery.actors.sandbox.contract import Host, Surroundings
from rookery.actors.sandbox.wasm import Externs, GuestStopped, Linker, Machine, Prepared
from rookery.schemas.errors import Failed

__all__ = ["Engine", "JavaScriptMachine", "engine_bytes", "prelude"]

_MEMORY_BYTES_MAX = 4 << 30
"""Until a run brings its own limit: an image is loaded before."""
_SCRATCH_BYTES = 64
_SHORT_BYTES = 4096
"""Texts up to here travel through a place of their own, longer ones through one made for them."""
_SCRIPT_NAME: Final = b"eval_script"
"""What the engine calls every source it is given; the place in its memory where that stands."""
_PRELUDE_NAME: Final = b"rookery-api"
_RUN_NAME: Final = "run-%07d"
_BAD_DESCRIPTOR = 8
_RANDOM_BYTES_MAX = 1 << 20
_OK = 0
_word = struct.Struct("<i")


def engine_bytes() -> bytes:
    return files("quickjs_rs").joinpath("_guest.wasm").read_bytes()


def prelude() -> str:
    """One function of the host, kept as two files."""
    folder = Path(__file__).with_name("guest_js")
    text, session = ((folder / name).read_text() for name in ("text.js", "session.js"))
    return f"({session})({{text: ({text})(), ...__host}})"


class Engine:
    """Once a process: the module and its host functions."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module, prelude: str) -> None:
        self.engine, self.module, self.prelude = engine, module, prelude
        self.linker = Linker(engine)
        self.imports: list[tuple[bytes, bytes]] = []
        for wanted in module.imports:
            name = wanted.name or ""
            self.linker.define(wanted.module.encode(), name.encode(), wanted.type, _answer_to(name))
            self.imports.append((wanted.module.encode(), name.encode()))
        self.kinds = {
            export.name: (len(export.type.params), len(export.type.results))
            for export in module.exports
            if isinstance(export.type, wasmtime.FuncType)
            and all(str(kind) == "i32" for kind in export.type.params)
        }


class JavaScriptMachine(Machine):
    """A store with the engine in it, and the prelude in the engine."""

    host: Host

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.engine, _MEMORY_BYTES_MAX)
        self.surroundings = Surroundings()
        self._kinds = engine.kinds
        self._functions: dict[str, Prepared] = {}
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

    # --- what a step is made of -----------------------------------------------------------------

    def ask(self, method: str, *texts: str) -> str:
        """What a method of the prelude says."""
        handles = [self.text(text) for text in texts]
        handle = self._applied(method, handles)
        for given in handles:
            self._c("free_value", given)
        return self._taken_text(handle)

    def tell(self, method: str, handle: int) -> str:
        """The same with a value, which is given away."""
        told = self._applied(method, [handle])
        self._c("free_value", handle)
        return self._taken_text(told)

    def evaluate(self, code: str) -> tuple[bool, int]:
        """Whether it could begin, and its promise; or else its error."""
        status, handle = self._evaluated("eval_async", code)
        return (True, handle) if status == _OK else (False, self._thrown())

    def compile(self, code: str) -> int | None:
        """The error of a program that cannot run; nothing of it runs."""
        status, handle = self._evaluated("eval_code", f"(async()=>{{{code}\n}})")
        if status != _OK:
            return self._thrown()
        self._c("free_value", handle)
        return None

    def work_off(self) -> None:
        """All jobs there are."""
        self._c("execute_pending_jobs")

    @property
    def script_name(self) -> str:
        """Of the source that was evaluated last. Kept where the engine keeps it: in memory."""
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
            return self._c("new_string", self._short, len(data))
        with self._bytes(data) as (pointer, length):
            return self._c("new_string", pointer, length)

    def read_text(self, handle: int) -> str:
        if self._c("get_string", handle) != _OK:
            return ""
        length = self._c("qjs_last_len")
        text = self.read(self._c("qjs_last_ptr"), length)
        if length > _SHORT_BYTES:
            self._c("qjs_result_free")
        return text.decode(errors="replace")

    def emitted(self, channel: int, text: bytes) -> bool:
        return self.host.emit(channel, text)

    def _taken_text(self, handle: int) -> str:
        text = self.read_text(handle)
        self._c("free_value", handle)
        return text

    def _applied(self, method: str, handles: list[int]) -> int:
        self.write(self._scratch + 4, struct.pack(f"<{len(handles)}i", *handles))
        status = self._c(
            "call_function",
            self._methods[method],
            self._undefined,
            self._scratch + 4,
            len(handles),
            self._scratch,
        )
        if status != _OK:
            if method == "refuse" and self.size > self.memory_bytes_max // 2:
                raise GuestStopped("MEMORY_EXCEEDED", "there is no memory left to say what failed")
            said = self._taken_text(self._applied_to_error()) if method != "refuse" else ""
            raise GuestStopped("RUNTIME_ERROR", f"the engine failed in {method}: {said[:200]}")
        return self._out()

    def _applied_to_error(self) -> int:
        return self._applied("refuse", [self._thrown()])

    def _evaluated(self, how: str, code: str) -> tuple[int, int]:
        with self._bytes(code.encode()) as (pointer, length):
            return self._c(how, pointer, length, self._scratch), self._out()

    def _thrown(self) -> int:
        self._c("last_exception", self._scratch)
        return self._out()

    def _out(self) -> int:
        """The handle the last call wrote."""
        return int(_word.unpack(self.read(self._scratch, 4))[0])

    @contextmanager
    def _bytes(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Not freed if the engine stops: then it is spent."""
        pointer = self._c("qjs_alloc", len(data))
        if not pointer and data:
            text = f"{len(data)} bytes for the program do not fit into its memory"
            raise GuestStopped("MEMORY_EXCEEDED", text)
        self.write(pointer, data)
        yield pointer, len(data)
        self._c("qjs_free", pointer, len(data))

    def _c(self, name: str, *arguments: int) -> int:
        function = self._functions.get(name)
        if function is None:
            found = Externs(1)
            self.fetch(self._instance, name.encode(), found, 0)
            self._externs.append(found)
            function = Prepared(self, found.array[0], *self._kinds[name])
            self._functions[name] = function
        return function(*arguments)

    # --- the prelude ----------------------------------------------------------------------------

    def _boot(self, prelude: str) -> None:
        self._scratch = self._c("qjs_alloc", _SCRATCH_BYTES)
        self._short = self._c("qjs_alloc", _SHORT_BYTES)
        self._undefined = self._c("new_undefined")
        self._name_at = self._found(_SCRIPT_NAME)
        self.write(self._name_at, _PRELUDE_NAME)
        bridge, world = self._c("new_object"), self._c("global_object")
        for name in _ASKED:
            with self._bytes(name.encode()) as (pointer, length):
                self._set(bridge, name, self._c("new_function", pointer, length))
        self._set(world, "__host", bridge)
        status, session = self._evaluated("eval_code", prelude)
        if status != _OK:
            raise Failed("GUEST_BUILD_FAILED", "the prelude of the JavaScript guest failed")
        self._methods = {name: self._get(session, name) for name in _METHODS}
        _, forgotten = self._evaluated("eval_code", "delete globalThis.__host")
        for handle in (world, session, forgotten):
            self._c("free_value", handle)

    def _found(self, constant: bytes) -> int:
        memory = self.read(0, self.size)
        at = memory.find(constant)
        if at < 0 or memory.find(constant, at + 1) >= 0:
            raise Failed("GUEST_BUILD_FAILED", "the JavaScript engine is not the one expected")
        return at

    def _set(self, handle: int, name: str, value: int) -> None:
        with self._bytes(name.encode()) as (pointer, length):
            self._c("set_prop", handle, pointer, length, value)
        self._c("free_value", value)

    def _get(self, handle: int, name: str) -> int:
        with self._bytes(name.encode()) as (pointer, length):
            self._c("get_prop", handle, pointer, length, self._scratch)
        return self._out()


# --- what the engine asks ---------------------------------------------------------------------


def _call(machine: JavaScriptMachine, asked: str) -> int:
    name, _, arguments = asked.partition(" ")
    return machine.text(machine.host.call(name, arguments.encode()).decode())


def _random(machine: JavaScriptMachine) -> int:
    words = struct.unpack("<4I", machine.surroundings.random_bytes(16))
    return machine.text(str(list(words)))


def _sleep(machine: JavaScriptMachine, duration_ms: str) -> int:
    """The prelude says it; a program that found the way here may say anything."""
    try:
        duration_ns = int(float(duration_ms) * 1e6)
    except (ValueError, OverflowError):
        raise GuestStopped("RUNTIME_ERROR", "the guest slept for no time there is") from None
    machine.surroundings.pass_time(duration_ns + 1)
    return machine.text("")


def _stdout(machine: JavaScriptMachine, text: str) -> int:
    machine.emitted(1, f"{text}\n".encode())
    return machine.text("")


def _stderr(machine: JavaScriptMachine, text: str) -> int:
    machine.emitted(2, f"{text}\n".encode())
    return machine.text("")


_ASKED: Mapping[str, Callable[..., int]] = {
    "call": _call,
    "random": _random,
    "sleep": _sleep,
    "stdout": _stdout,
    "stderr": _stderr,
}
_ARITIES = {"call": 1, "random": 0, "sleep": 1, "stdout": 1, "stderr": 1}
_METHODS = ("begin", "watch", "settle", "pump", "refuse")


def _host_call(
    machine: JavaScriptMachine, name: int, length: int, _this: int, count: int, arguments: int
) -> int:
    asked = machine.read(name, length).decode(errors="replace")
    if asked not in _ASKED or count != _ARITIES[asked]:
        raise GuestStopped("RUNTIME_ERROR", "the guest asked its host for something unknown")
    handles = struct.unpack(f"<{count}i", machine.read(arguments, 4 * count))
    return _ASKED[asked](machine, *(machine.read_text(handle) for handle in handles))


def _clock(machine: JavaScriptMachine, _clock: int, _precision: int, result: int) -> int:
    machine.write(result, struct.pack("<Q", machine.surroundings.read_clock_ns()))
    return 0


def _random_get(machine: JavaScriptMachine, pointer: int, count: int) -> int:
    if not 0 <= count <= _RANDOM_BYTES_MAX:
        raise GuestStopped("RUNTIME_ERROR", f"the guest asked for {count} random bytes")
    machine.write(pointer, machine.surroundings.random_bytes(count))
    return 0


def _no_environment(machine: JavaScriptMachine, count: int, size: int) -> int:
    machine.write(count, bytes(4))
    machine.write(size, bytes(4))
    return 0


def _exit(_machine: JavaScriptMachine, _code: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the program ended its interpreter")


_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "host_call": _host_call,
    "clock_time_get": _clock,
    "random_get": _random_get,
    "environ_sizes_get": _no_environment,
    "proc_exit": _exit,
}


def _answer_to(name: str) -> Callable[..., Any]:
    """Descriptors do not exist; modules are not found; nobody interrupts this way."""
    if answer := _ANSWERS.get(name):
        return answer
    refusal = _BAD_DESCRIPTOR if name.startswith("fd_") else 0
    return lambda _machine, *_arguments: refusal
