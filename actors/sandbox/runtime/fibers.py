"""Fibers: calls of exports on stacks of their own, which host functions can suspend.

wasmtime's asynchronous C API runs a call of an export on a fiber. A host function that is defined
for it may reply "not yet": then the fiber is suspended, ``proceed`` returns, and any thread may
call it again later. This module alone knows that API, through the private bindings of wasmtime-py,
and ``obstacle`` says whether this process can use it.

Two rules keep the process alive. Callbacks return before wasmtime changes stacks, so a suspended
fiber has no Python frame. And a fiber has room for the whole stack of WebAssembly and for the host
functions above it: where a fiber ends, wasmtime aborts the process.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Generator
from ctypes import byref
from typing import Any, Final

import wasmtime
from wasmtime import _ffi as ffi

__all__ = [
    "NEEDED",
    "STACK_BYTES",
    "FiberCall",
    "PendingHostCall",
    "define_suspending",
    "obstacle",
    "reserve_stacks",
]

STACK_BYTES: Final = 8 << 20
"""Stack of a fiber: the largest WebAssembly stack that wasmtime allows, and 6 MiB above it."""

NEEDED: Final = (
    "wasmtime_async_continuation_t",
    "wasmtime_call_future_delete",
    "wasmtime_call_future_poll",
    "wasmtime_config_async_stack_size_set",
    "wasmtime_func_async_callback_t",
    "wasmtime_func_async_continuation_callback_t",
    "wasmtime_func_call_async",
    "wasmtime_linker_define_async_func",
)
"""What this module needs of the bindings beside what ``wasm`` needs."""

_PYTHON_MEASURES_STACKS = (3, 14)
"""From this version on CPython compares the stack pointer with the bounds of the thread's own
stack, so a callback on a fiber looks like an overflow to it."""


def obstacle() -> str:
    """Why guests cannot run on fibers here; empty if they can."""
    if sys.version_info >= _PYTHON_MEASURES_STACKS:
        return "this version of Python checks the bounds of the thread's own stack"
    absent = [name for name in NEEDED if not hasattr(ffi, name)]
    return f"the bindings of wasmtime lack {', '.join(absent)}" if absent else ""


def reserve_stacks(config: wasmtime.Config) -> None:
    """Give each fiber of the engine its stack. Only touched pages of it use memory."""
    ffi.wasmtime_config_async_stack_size_set(config.ptr(), STACK_BYTES)


class FiberCall:
    """Calls an exported function of ``i32`` parameters, once at a time, on a fiber."""

    def __init__(self, context: Any, function: Any, parameters: int, results: int) -> None:
        self._arguments = (ffi.wasmtime_val_t * max(parameters, 1))()
        self._results = (ffi.wasmtime_val_t * max(results, 1))()
        self.trap = ctypes.POINTER(ffi.wasm_trap_t)()
        self.error = ctypes.POINTER(ffi.wasmtime_error_t)()
        """Set when a call did not return. Its store is unusable then, so they are set once."""
        self._given = (
            context,
            byref(function),
            self._arguments,
            parameters,
            self._results,
            results,
            byref(self.trap),
            byref(self.error),
        )
        self._future: Any = None
        # Without the bindings' functions around these: a short run makes five calls on fibers.
        self._begin = ffi.dll.wasmtime_func_call_async
        self._poll = ffi.dll.wasmtime_call_future_poll
        self._delete = ffi.dll.wasmtime_call_future_delete

    @property
    def result(self) -> int:
        return int(self._results[0].of.i32)

    def begin(self, arguments: tuple[int, ...]) -> None:
        for place, argument in enumerate(arguments):
            self._arguments[place].of.i32 = argument  # An ``i32`` is the kind 0.
        self._future = self._begin(*self._given)

    def proceed(self) -> bool:
        """Execute until the call ends, which is true, or is suspended."""
        return bool(self._poll(self._future))

    def drop(self) -> None:
        """Free the fiber. The store of a call that has not ended is unusable after that."""
        future, self._future = self._future, None
        if future is not None:
            self._delete(future)


class PendingHostCall:
    """A call of a suspending host function: its steps, and where its result goes."""

    __slots__ = ("_result_at", "_trap_at", "steps")

    def __init__(self, steps: HostSteps, result_at: int, trap_at: int) -> None:
        self.steps, self._result_at, self._trap_at = steps, result_at, trap_at

    def finish(self, result: int | None) -> None:
        if result is not None:
            ctypes.memmove(self._result_at, _VALUE.pack(result), _VALUE.size)

    def stop(self) -> None:
        """End the guest with a trap."""
        trap = ffi.wasmtime_trap_new(b"host", 4)
        address = ctypes.cast(trap, ctypes.c_void_p).value
        ctypes.c_void_p.from_address(self._trap_at).value = address


HostSteps = Generator[Any, None, int | None]


def define_suspending(
    linker: Any,
    module: bytes,
    name: bytes,
    kind: Any,
    *,
    begin: Callable[[tuple[int, ...], int, int], None],
    proceed: Callable[[], bool],
) -> Any:
    """Define a host function of ``i32`` parameters. ``begin`` gets the arguments and the addresses
    for a result and a trap; ``proceed`` is called, at once and whenever the fiber proceeds, until
    it returns true. Both run on the fiber and must not raise. Returns what must outlive the linker.
    """
    layout = struct.Struct("<" + _VALUE.format[1:] * len(kind.params))
    continued = ffi.wasmtime_func_async_continuation_callback_t(lambda _data: proceed())
    continuation = ffi.wasmtime_async_continuation_t(continued)
    size = ctypes.sizeof(continuation)

    def called(
        _data: Any,
        _caller: Any,
        arguments: int,
        _count: int,
        result_at: int,
        _results: int,
        trap_at: int,
        continuation_at: int,
    ) -> None:
        ctypes.memmove(continuation_at, byref(continuation), size)
        begin(layout.unpack(ctypes.string_at(arguments, layout.size)), result_at, trap_at)

    callback = _Callback(called)
    error = ffi.wasmtime_linker_define_async_func(
        linker.ptr(),
        ctypes.create_string_buffer(module),
        len(module),
        ctypes.create_string_buffer(name),
        len(name),
        kind.ptr(),
        ctypes.cast(callback, ffi.wasmtime_func_async_callback_t),
        None,
        _no_finalizer,
    )
    if error:
        raise wasmtime.WasmtimeError._from_ptr(error)
    return callback, continued


def _value_layout() -> struct.Struct:
    """An ``i32`` in a ``wasmtime_val_t``."""
    begin, size = ffi.wasmtime_val_t.of.offset, ctypes.sizeof(ffi.wasmtime_val_t)
    return struct.Struct(f"<{begin}xi{size - begin - 4}x")


_VALUE = _value_layout()
_Callback = ctypes.CFUNCTYPE(
    None,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_no_finalizer = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()
