"""The wheel's TypeScript transformer: for what is more than a type, and what the grammar refuses.

It prints the program anew, so places are lost and found again by comparing words. It runs behind
the same walls as programs do, in an instance of its own that is used once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import wasmtime

from rookery.actors.sandbox.runtime.wasm import (
    Externs,
    GuestStopped,
    Linker,
    PreparedFunction,
    WasmStore,
)
from rookery.actors.sandbox.typescript.syntax import WatchFunction

__all__ = ["TransformFailed", "Transformer", "transformer_bytes"]

_MEMORY_BYTES_MAX = 256 << 20
_FLAGS = 1 << 0 | 1 << 8
"""The source is TypeScript; strip it."""
_NAME = b"program.ts"
_TRANSFORMED, _UNCHANGED, _REFUSED = 0, 1, 3
_FUNCTIONS = {
    "qjst_alloc": (1, 1),
    "qjst_transform": (5, 1),
    "qjst_result_ptr": (0, 1),
    "qjst_result_len": (0, 1),
    "qjst_error_ptr": (0, 1),
    "qjst_error_len": (0, 1),
}


class TransformFailed(Exception):
    """Why not. ``is_syntax``: it is not TypeScript; or else it is more than can be done."""

    def __init__(self, message: str, *, is_syntax: bool) -> None:
        super().__init__(message)
        self.message, self.is_syntax = message, is_syntax


def transformer_bytes() -> bytes:
    return files("quickjs_rs").joinpath("_transform.wasm").read_bytes()


class Transformer:
    """Once a process: the module and what it imports."""

    def __init__(self, engine: wasmtime.Engine, module: wasmtime.Module) -> None:
        self._engine, self._module = engine, module
        self._linker = Linker(engine)
        self._imports: list[tuple[bytes, bytes]] = []
        for wanted in module.imports:
            name = wanted.module.encode(), (wanted.name or "").encode()
            self._linker.define(*name, wanted.type, _HOST_FUNCTIONS[wanted.name or ""])
            self._imports.append(name)

    def transform(self, source: bytes, watch: WatchFunction) -> str:
        """The program as JavaScript."""
        machine = WasmStore(self._engine, _MEMORY_BYTES_MAX)
        machine.watch = watch
        try:
            return self._transform(machine, source)
        except GuestStopped as stopped:
            if stopped.code in ("STACK_OVERFLOW", "RUNTIME_ERROR"):  # Its stack is in its memory.
                text = "the program is nested too deeply to be transformed"
                raise TransformFailed(text, is_syntax=False) from None
            raise
        finally:
            machine.close()

    def _transform(self, machine: WasmStore, source: bytes) -> str:
        wanted = Externs(len(self._imports))
        for place, (module, name) in enumerate(self._imports):
            self._linker.fetch(machine, module, name, wanted, place)
        instance = machine.instantiate(self._module, wanted)
        found = Externs(1 + len(_FUNCTIONS))
        machine.fetch(instance, b"memory", found, 0)
        machine.use(found.array[0])
        call: dict[str, PreparedFunction] = {}
        for place, (function, kind) in enumerate(_FUNCTIONS.items(), 1):
            machine.fetch(instance, function.encode(), found, place)
            call[function] = PreparedFunction(machine, found.array[place], *kind)
        arguments: list[int] = []
        for data in (_NAME, source):
            pointer = call["qjst_alloc"](len(data))
            machine.write(pointer, data)
            arguments += (pointer, len(data))
        status = call["qjst_transform"](*arguments, _FLAGS)
        if status == _UNCHANGED:
            return source.decode()
        what = "result" if status == _TRANSFORMED else "error"
        said = machine.read(call[f"qjst_{what}_ptr"](), call[f"qjst_{what}_len"]()).decode()
        if status == _TRANSFORMED:
            return said
        raise TransformFailed(_without_name(said), is_syntax=status == _REFUSED)


def _without_name(said: str) -> str:
    _, found, reason = said.partition(f"{_NAME.decode()}: ")
    reason = reason if found else said
    return reason.partition("\n")[0].rstrip(".")


def _random(machine: WasmStore, pointer: int, count: int) -> int:
    """Its hash tables want some, and what they print must not depend on it."""
    machine.write(pointer, bytes(count & 0xFF))
    return 0


def _no_environment(machine: WasmStore, count: int, size: int) -> int:
    machine.write(count, bytes(4))
    machine.write(size, bytes(4))
    return 0


def _no_operation(_machine: WasmStore, *_arguments: int) -> int:
    return 0


def _exit(_machine: WasmStore, _code: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the transformer gave up")


_HOST_FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "random_get": _random,
    "environ_sizes_get": _no_environment,
    "environ_get": _no_operation,
    "fd_write": _no_operation,
    "proc_exit": _exit,
}
