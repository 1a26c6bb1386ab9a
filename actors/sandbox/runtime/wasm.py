"""The only module that uses wasmtime's C API: stores, prepared calls, host functions, traps.

wasmtime-py has one slot for the exception of a host function, which all threads share. So this
module defines host functions as C callbacks: an exception goes into ``stopped`` of its store, the
guest gets a trap, and no Python exception crosses WebAssembly. Every pointer from a guest is
checked against the size of its memory.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable
from ctypes import byref
from typing import Any, ClassVar, Final, NamedTuple

import wasmtime
from wasmtime import _ffi as ffi

from rookery.actors.sandbox.contract import Pause
from rookery.actors.sandbox.runtime import fibers

__all__ = [
    "PAGE_BYTES",
    "THREAD_STACK_BYTES",
    "Engine",
    "Export",
    "Extern",
    "Externs",
    "GlobalValues",
    "GuestStopped",
    "Linker",
    "PreparedFunction",
    "WasmStore",
    "make_engine",
    "reason",
    "running_store",
]

THREAD_STACK_BYTES: Final = 16 << 20
"""Stack of a thread that runs guests; it includes the wasm stack."""

PAGE_BYTES: Final = 1 << 16

_PIECE_BYTES = 2 << 20
"""The step in which an interpreter allocates: with less left it aborts, out of memory."""

_WASM_STACK_BYTES = 2 << 20  # CPython traps with the default; above this Engine() aborts.
_OUT_OF_STACK = "nest calls and data less deep; a higher max_stack_depth does not help here"
_FUEL = 1 << 62
_CONTINUE, _YIELD = 0, 1
_EXTERN_BYTES = ctypes.sizeof(ffi.wasmtime_extern_t)
_VALUE_BYTES = ctypes.sizeof(ffi.wasmtime_val_t)
_VALUE_WORDS, _I32_AT = _VALUE_BYTES // 4, ffi.wasmtime_val_t.of.offset // 4
_MASK = 0xFFFF_FFFF
_I32 = struct.Struct("<i")
_SLOT = {"i32": "i12x", "i64": "q8x"}
_SLOT_BYTES = 16
_RESERVED_BYTES = 4 << 30

Extern = Any
"""A ``wasmtime_extern_t``; its class is private to wasmtime-py."""

_running = threading.local()
"""``store``: the ``WasmStore`` that this thread executes."""


def running_store() -> WasmStore:
    """The store that this thread executes."""
    store: WasmStore = _running.store
    return store


class GuestStopped(Exception):
    """The guest did not return: its store is unusable."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.hint = code, message, hint


class Engine(wasmtime.Engine):
    """An engine, and whether its guests run on fibers."""

    def __init__(self, config: wasmtime.Config, *, has_fibers: bool) -> None:
        super().__init__(config)
        self.has_fibers = has_fibers


def make_engine(*, has_fibers: bool = True) -> Engine:
    """An engine for guests. Without ``has_fibers``, or where fibers cannot be, a guest that waits
    for a synchronous call blocks its thread."""
    config = wasmtime.Config()
    has_fibers = has_fibers and not fibers.obstacle()
    if has_fibers:
        fibers.reserve_stacks(config)
    config.consume_fuel = True
    config.epoch_interruption = True
    config.max_wasm_stack = _WASM_STACK_BYTES
    config.memory_reservation = _RESERVED_BYTES  # All that a guest can address: so memory
    config.memory_may_move = False  # never moves, and its address is read once.
    return Engine(config, has_fibers=has_fibers)


class Externs:
    """An array of functions, memories, tables and globals, for the imports of a module."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.array = (ffi.wasmtime_extern_t * max(count, 1))()
        self.first: Extern = self.array[0]

    def at(self, index: int) -> Any:
        return byref(self.first, index * _EXTERN_BYTES)


class Export(NamedTuple):
    """An export to be copied into an array of imports."""

    name: bytes
    length: int
    offset_bytes: int

    @classmethod
    def at(cls, index: int, name: bytes) -> Export:
        return cls(name, len(name), index * _EXTERN_BYTES)


def _short_call(name: str, result: Any, *parameters: Any) -> Any:
    """A function of wasmtime's C API that returns within microseconds and executes no guest. Unlike
    the bindings, it does not release the lock of the interpreter: a new Python guest makes 2,600 of
    these calls, and every run some. After each the thread would wait for other threads."""
    return ctypes.PYFUNCTYPE(result, *parameters)((name, ffi.dll))


_pointer, _size = ctypes.c_void_p, ctypes.c_size_t
_export_get = _short_call(
    "wasmtime_instance_export_get",
    ctypes.c_bool,
    _pointer,
    _pointer,
    ctypes.c_char_p,
    _size,
    _pointer,
)
_linker_get = _short_call(
    "wasmtime_linker_get",
    *(ctypes.c_bool, _pointer, _pointer, ctypes.c_char_p, _size, ctypes.c_char_p, _size, _pointer),
)
_global_get = _short_call("wasmtime_global_get", None, _pointer, _pointer, _pointer)
_table_size = _short_call("wasmtime_table_size", ctypes.c_uint64, _pointer, _pointer)
_call_function = ffi.dll.wasmtime_func_call_unchecked
"""Without the function around it, and with arguments that are made once: a short run of TypeScript
makes 14 calls, each of which took 2 µs."""
_memory_size = _short_call("wasmtime_memory_data_size", _size, _pointer, _pointer)
_set_limits = _short_call("wasmtime_store_limiter", None, _pointer, *[ctypes.c_int64] * 5)
_set_fuel = _short_call("wasmtime_context_set_fuel", _pointer, _pointer, ctypes.c_uint64)
_get_fuel = _short_call("wasmtime_context_get_fuel", _pointer, _pointer, _pointer)


class WasmStore:
    """A wasmtime store: instances that share a memory, a fuel meter and a thread."""

    needs_copies: ClassVar[bool] = False
    """Whether the interpreter aborts where it has no memory for a copy of what it holds."""

    def __init__(self, engine: Engine, memory_bytes_max: int) -> None:
        self.store = wasmtime.Store(engine)
        self.context = self.store._context()
        self.has_fibers = engine.has_fibers
        self.clear(memory_bytes_max)
        ffi.wasmtime_store_epoch_deadline_callback(self.store.ptr(), _on_tick, None, _no_finalizer)
        self.store.set_epoch_deadline(1)

    def clear(self, memory_bytes_max: int) -> None:
        """Forget all about the store's last run."""
        self.stopped: GuestStopped | None = None
        self.watch: Callable[[], bool] = _never
        """Called at every epoch tick while the guest runs; returns whether the guest should pause
        if it can. May raise ``GuestStopped``."""
        self.may_pause = False
        """Whether the guest is on a fiber, and not in a call that a host function makes."""
        self.pause: Pause = None
        """Why the guest was suspended."""
        self.host_call: Any = None
        """The host function that suspended the guest."""
        self.drop_fiber: Callable[[], None] = _nothing
        self.limit_memory(memory_bytes_max)
        self.refuel()

    def limit_memory(self, size_bytes: int) -> None:
        _set_limits(self.store.ptr(), size_bytes, -1, -1, -1, -1)
        self.memory_bytes_max = size_bytes

    def refuel(self) -> None:
        """Reset the fuel meter."""
        _set_fuel(self.context, _FUEL)

    @property
    def fuel_used(self) -> int:
        left = ctypes.c_uint64()
        _get_fuel(self.context, byref(left))
        return _FUEL - left.value

    def enter(self) -> None:
        """Mark this store as the one that this thread executes."""
        _running.store = self

    def reason(self, error: str, code: wasmtime.TrapCode | None) -> GuestStopped:
        """Why the guest did not return: the exception of a host function, else wasmtime's error."""
        stopped, self.stopped = self.stopped, None
        if stopped is not None:
            return stopped
        if code is wasmtime.TrapCode.STACK_OVERFLOW:
            text = "the interpreter itself ran out of stack"
            return GuestStopped("STACK_OVERFLOW", text, hint=_OUT_OF_STACK)
        free_bytes = self.memory_bytes_max - self.size
        needed_bytes = self.memory_bytes_max // 2 if self.needs_copies else _PIECE_BYTES
        aborted = code is wasmtime.TrapCode.UNREACHABLE and free_bytes < needed_bytes
        if aborted or free_bytes < PAGE_BYTES:
            return GuestStopped("MEMORY_EXCEEDED", "the interpreter ran out of memory")
        what = code.name.lower().replace("_", " ") if code else error.partition("\n")[0]
        return GuestStopped("RUNTIME_ERROR", f"the interpreter stopped: {what or 'a trap'}")

    def instantiate(self, module: wasmtime.Module, imports: Externs) -> Any:
        self.enter()
        instance, trap = ffi.wasmtime_instance_t(), ctypes.POINTER(ffi.wasm_trap_t)()
        error = ffi.wasmtime_instance_new(
            self.context, module.ptr(), imports.array, imports.count, byref(instance), byref(trap)
        )
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)
        if trap:
            ffi.wasm_trap_delete(trap)
            raise wasmtime.WasmtimeError("a module trapped while it was instantiated")
        return instance

    def fetch(self, instance: Any, name: bytes, into: Externs, index: int) -> None:
        """Copy the export ``name`` of ``instance`` into an array of imports."""
        if not _export_get(self.context, byref(instance), name, len(name), into.at(index)):
            raise LookupError(f"the guest exports no {name.decode()}")

    def fetch_all(self, instance: Any, exports: Iterable[Export], into: Externs) -> None:
        """Copy many exports of ``instance``."""
        context = _address(self.context)
        source, target = ctypes.addressof(instance), ctypes.addressof(into.array)
        for export in exports:
            name, length, offset_bytes = export
            if not _export_get(context, source, name, length, target + offset_bytes):
                raise LookupError(f"the guest exports no {name.decode()}")

    def fetch_named(self, names: Iterable[tuple[Any, str]]) -> Externs:
        """Fetch exports, each by its instance and name."""
        wanted = list(names)
        found = Externs(len(wanted))
        for place, (instance, name) in enumerate(wanted):
            self.fetch(instance, name.encode(), found, place)
        return found

    def set_value(self, extern: Extern, value: int) -> None:
        """Set the value of a global."""
        wasmtime.Global._from_raw(extern.of.global_).set_value(self.store, value)

    def length(self, extern: Extern) -> int:
        """The length of a table."""
        return int(_table_size(self.context, byref(extern.of.table)))

    def use(self, memory: Extern, stack_pointer: Extern | None = None) -> None:
        """Set the memory and the stack pointer of the guest; only images need the pointer."""
        self._memory = memory.of.memory
        data = ffi.wasmtime_memory_data(self.context, byref(self._memory))
        self.address = _address(data)
        self._size_seen = self.size
        if stack_pointer is not None:
            self._stack_pointer = wasmtime.Global._from_raw(stack_pointer.of.global_)

    @property
    def stack_pointer(self) -> int:
        return int(self._stack_pointer.value(self.store)) & _MASK

    @stack_pointer.setter
    def stack_pointer(self, value: int) -> None:
        self._stack_pointer.set_value(self.store, value)

    @property
    def size(self) -> int:
        return int(_memory_size(self.context, byref(self._memory)))

    def grow_to(self, size: int) -> None:
        if size > self.size:
            before = ctypes.c_uint64()
            pages = (size - self.size) // PAGE_BYTES
            error = ffi.wasmtime_memory_grow(
                self.context, byref(self._memory), pages, byref(before)
            )
            if error:
                raise wasmtime.WasmtimeError._from_ptr(error)

    def read(self, pointer: int, length: int) -> bytes:
        length &= _MASK
        return ctypes.string_at(self._checked(pointer, length), length)

    def write(self, pointer: int, data: bytes) -> None:
        ctypes.memmove(self._checked(pointer, len(data)), data, len(data))

    def close(self) -> None:
        self.enter()
        self.drop_fiber()
        self.store.close()

    def _checked(self, pointer: int, length: int) -> int:
        pointer &= _MASK
        if pointer + length > self._size_seen:
            self._size_seen = self.size  # It only grows.
        if pointer + length > self._size_seen:
            raise GuestStopped("RUNTIME_ERROR", "the guest named memory it does not have")
        return self.address + pointer


class GlobalValues:
    """Reads the mutable globals of a store, and the lengths of its tables, in 80 µs."""

    def __init__(self, globals_: Externs, tables: Externs) -> None:
        self._globals, self._tables = globals_, tables
        self._values = (ffi.wasmtime_val_t * globals_.count)()
        source = ctypes.addressof(globals_.array) + ffi.wasmtime_extern_t.of.offset
        target = ctypes.addressof(self._values)
        self._places = [
            (source + _EXTERN_BYTES * place, target + _VALUE_BYTES * place)
            for place in range(globals_.count)
        ]

    def read(self, store: WasmStore) -> bytes:
        context = _address(store.context)
        for source, target in self._places:
            _global_get(context, source, target)
        words = memoryview(bytes(self._values)).cast("i")
        lengths = [store.length(self._tables.array[i]) for i in range(self._tables.count)]
        return words[_I32_AT::_VALUE_WORDS].tobytes() + struct.pack(f"<{len(lengths)}I", *lengths)


class PreparedFunction:
    """An exported function of ``i32`` parameters, with a reused buffer for its arguments."""

    def __init__(self, store: WasmStore, function: Extern, parameters: int, results: int) -> None:
        self._wasm_store, self._function = store, function.of.func
        slots = max(parameters, results, 1)
        self._layout = struct.Struct("<" + _SLOT["i32"] * parameters)
        self._returns = bool(results)
        self._buffer = ctypes.create_string_buffer(slots * _SLOT_BYTES)
        self._trap = ctypes.POINTER(ffi.wasm_trap_t)()
        self._given = (
            store.context,
            byref(self._function),
            ctypes.cast(self._buffer, ctypes.POINTER(ffi.wasmtime_val_raw_t)),
            slots,
            byref(self._trap),
        )

    def __call__(self, *arguments: int) -> int:
        self._layout.pack_into(self._buffer, 0, *arguments)
        store = self._wasm_store
        _running.store = store
        may_pause, store.may_pause = store.may_pause, False
        error = _call_function(*self._given)
        store.may_pause = may_pause
        if error or self._trap:
            stopped = reason(store, error, self._trap)
            ctypes.memset(byref(self._trap), 0, ctypes.sizeof(self._trap))
            raise stopped
        return int(_I32.unpack_from(self._buffer)[0]) if self._returns else 0


class Linker:
    """Host functions, defined once a process and imported by every store."""

    def __init__(self, engine: Engine) -> None:
        self._linker = wasmtime.Linker(engine)
        self._has_fibers = engine.has_fibers
        self._callbacks: list[Any] = []

    def define(self, module: bytes, name: bytes, kind: Any, function: Callable[..., Any]) -> None:
        """Define ``function(store, *integers)``; it may raise ``GuestStopped``."""
        types = [str(parameter) for parameter in kind.params], [str(r) for r in kind.results]
        callback = _callback(function, *types)
        self._callbacks.append(callback)  # Otherwise ctypes frees it.
        error = ffi.wasmtime_linker_define_func_unchecked(
            self._linker.ptr(),
            ctypes.create_string_buffer(module),
            len(module),
            ctypes.create_string_buffer(name),
            len(name),
            kind.ptr(),
            ctypes.cast(callback, ffi.wasmtime_func_unchecked_callback_t),
            None,
            _no_finalizer,
        )
        if error:
            raise wasmtime.WasmtimeError._from_ptr(error)

    def fetch(
        self, store: WasmStore, module: bytes, name: bytes, into: Externs, index: int
    ) -> None:
        """Copy a host function into an array of imports."""
        if not _linker_get(
            self._linker.ptr(),
            store.context,
            module,
            len(module),
            name,
            len(name),
            into.at(index),
        ):
            raise LookupError(f"the host defines no {name.decode()}")


def _callback(function: Callable[..., Any], parameters: list[str], results: list[str]) -> Any:
    """A C function over raw slots, which hold the arguments and then the result."""
    arguments_layout = struct.Struct("<" + "".join(_SLOT[kind] for kind in parameters))
    returned = struct.Struct({"i32": "<i", "i64": "<q"}[results[0]]) if results else None

    def called(_data: Any, _caller: Any, slots: int, _count: int) -> int:
        store = running_store()
        try:
            value = function(
                store, *arguments_layout.unpack(ctypes.string_at(slots, arguments_layout.size))
            )
            store.enter()  # The function may have entered another store.
            if returned is not None:
                ctypes.memmove(slots, returned.pack(value), returned.size)
        except GuestStopped as stopped:
            store.stopped = stopped
        except BaseException as bug:
            store.stopped = GuestStopped("RUNTIME_ERROR", f"a host function failed: {bug!r}")
        else:
            return 0
        return _address(ffi.wasmtime_trap_new(b"host", 4))

    return _Callback(called)


def _tick(_context: Any, _data: Any, delta: Any, kind: Any) -> int:
    store = running_store()
    try:
        pauses = store.watch() and store.may_pause
    except GuestStopped as stopped:
        store.stopped = stopped
        return _address(ffi.wasmtime_error_new(b"host"))
    delta[0] = 1
    kind[0] = _YIELD if pauses else _CONTINUE
    return 0


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
)
_no_finalizer = ctypes.CFUNCTYPE(None, ctypes.c_void_p)()
_on_tick = ctypes.CFUNCTYPE(
    ctypes.c_size_t,
    ctypes.POINTER(ffi.wasmtime_context_t),
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint8),
)(_tick)


def reason(store: WasmStore, error: Any, trap: Any) -> GuestStopped:
    """Why a call did not return, by what it returned instead."""
    text = str(wasmtime.WasmtimeError._from_ptr(error)) if error else ""
    code = None
    if trap:
        number = ffi.wasmtime_trap_code_t()
        if ffi.wasmtime_trap_code(trap, byref(number)):
            code = wasmtime.TrapCode(number.value)
        ffi.wasm_trap_delete(trap)
    return store.reason(text, code)
