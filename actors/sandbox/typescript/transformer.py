"""The TypeScript transformer of the quickjs-rs wheel, for programs that type erasure cannot
translate.

It prints the whole program again, so positions are recovered by comparing words. Each program is
transformed in a new WebAssembly instance.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import wasmtime

from rookery.actors.sandbox.runtime.wasm import (
    Engine,
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
"""The source is TypeScript; strip its types."""
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
    """The transformer refused a program. ``is_syntax``: for its syntax, else for a feature."""

    def __init__(self, message: str, *, is_syntax: bool) -> None:
        super().__init__(message)
        self.message, self.is_syntax = message, is_syntax


def transformer_bytes() -> bytes:
    return files("quickjs_rs").joinpath("_transform.wasm").read_bytes()


class Transformer:
    """The module and its host functions, once a process."""

    def __init__(self, engine: Engine, module: wasmtime.Module) -> None:
        self._engine, self._module = engine, module
        self._linker = Linker(engine)
        self._imports: list[tuple[bytes, bytes]] = []
        for wanted in module.imports:
            name = wanted.module.encode(), (wanted.name or "").encode()
            self._linker.define(*name, wanted.type, _HOST_FUNCTIONS[wanted.name or ""])
            self._imports.append(name)

    def transform(self, source: bytes, watch: WatchFunction) -> str:
        """The program as JavaScript."""
        store = WasmStore(self._engine, _MEMORY_BYTES_MAX)
        store.watch = watch
        try:
            return self._transform(store, source)
        except GuestStopped as stopped:
            if stopped.code in ("STACK_OVERFLOW", "RUNTIME_ERROR"):  # The stack is in the memory.
                text = "the program is nested too deeply to be transformed"
                raise TransformFailed(text, is_syntax=False) from None
            raise
        finally:
            store.close()

    def _transform(self, store: WasmStore, source: bytes) -> str:
        wanted = Externs(len(self._imports))
        for index, (module, name) in enumerate(self._imports):
            self._linker.fetch(store, module, name, wanted, index)
        instance = store.instantiate(self._module, wanted)
        found = Externs(1 + len(_FUNCTIONS))
        store.fetch(instance, b"memory", found, 0)
        store.use(found.array[0])
        call: dict[str, PreparedFunction] = {}
        for index, (function, kind) in enumerate(_FUNCTIONS.items(), 1):
            store.fetch(instance, function.encode(), found, index)
            call[function] = PreparedFunction(store, found.array[index], *kind)
        arguments: list[int] = []
        for data in (_NAME, source):
            pointer = call["qjst_alloc"](len(data))
            store.write(pointer, data)
            arguments += (pointer, len(data))
        status = call["qjst_transform"](*arguments, _FLAGS)
        if status == _UNCHANGED:
            return source.decode()
        what = "result" if status == _TRANSFORMED else "error"
        text = store.read(call[f"qjst_{what}_ptr"](), call[f"qjst_{what}_len"]()).decode()
        if status == _TRANSFORMED:
            return text
        raise TransformFailed(_without_name(text), is_syntax=status == _REFUSED)


def _without_name(text: str) -> str:
    _, found, reason = text.partition(f"{_NAME.decode()}: ")
    reason = reason if found else text
    return reason.partition("\n")[0].rstrip(".")


def _random(store: WasmStore, pointer: int, count: int) -> int:
    """Return zeros: the transformer's output must not depend on randomness."""
    store.write(pointer, bytes(count & 0xFF))
    return 0


def _no_environment(store: WasmStore, count: int, size: int) -> int:
    store.write(count, bytes(4))
    store.write(size, bytes(4))
    return 0


def _no_operation(_store: WasmStore, *_arguments: int) -> int:
    return 0


def _exit(_store: WasmStore, _code: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the transformer failed")


_HOST_FUNCTIONS: dict[str, Callable[..., int | None]] = {
    "random_get": _random,
    "environ_sizes_get": _no_environment,
    "environ_get": _no_operation,
    "fd_write": _no_operation,
    "proc_exit": _exit,
}
