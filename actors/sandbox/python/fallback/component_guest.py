"""The Python guest as one component, for builds whose modules cannot be linked.

A component has no images: sessions are rebuilt by repeating their runs. This is slower and has the
same semantics. wasmtime-py has one slot for the exception of a host function, which all threads
share, so one thread at a time runs a component, and ``stopped`` of its store has the exception.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha3_256
from typing import Any

import wasmtime
from wasmtime.component import Linker, ResourceAny

from rookery.actors.sandbox.contract import GuestEnvironment, Host, Image, MemoryCopy, StepPauses
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.fallback.component_wasi import (
    host_function_for,
    resource_type,
    wasi_of,
)
from rookery.actors.sandbox.python.python_guest import read_step
from rookery.actors.sandbox.runtime.suspension import complete
from rookery.actors.sandbox.runtime.wasm import Engine, GuestStopped, WasmStore
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language

__all__ = ["ComponentGuest", "ComponentInstance"]

_MEMORY_BYTES_MAX = 4 << 30
_LOCK_POLL_S = 0.01
"""The interval at which a run that waits for the lock checks its limits."""
_component_lock = threading.Lock()


class ComponentGuest:
    """The compiled component, once a process."""

    language = Language.PYTHON
    start = 0

    def __init__(self, engine: Engine, cache: GuestCache) -> None:
        source = cache.component(stub_wasi=False)
        self.build = sha3_256(source).hexdigest()
        self.engine = engine
        self.component = cache.native_component(engine, source)
        self.wasi = wasi_of(engine, self.component)

    def instance(self) -> ComponentInstance:
        return ComponentInstance(self)


class ComponentStore(WasmStore):
    """A store whose memory is not accessible."""

    size = 0


class ComponentInstance:
    """One interpreter without images."""

    host: Host
    has_fibers = False

    def __init__(self, guest: ComponentGuest) -> None:
        self.environment = GuestEnvironment()
        self.fuel_used = 0
        self.memory_bytes = self.own_bytes = 0
        self._wasm_store = ComponentStore(guest.engine, _MEMORY_BYTES_MAX)
        store = self._wasm_store.store
        with _component_lock:
            self._wasm_store.enter()
            instance = self._linker(guest).instantiate(store, guest.component)
            serve = instance.get_func(store, "serve")
        if serve is None:
            raise Failed("GUEST_BUILD_FAILED", "the component exports no serve")
        self._serve = serve

    def limit_memory(self, size_bytes: int) -> None:
        self._wasm_store.limit_memory(size_bytes)

    def step(self, request: bytes, host: Host) -> StepPauses:
        yield from ()  # A component cannot be suspended.
        wasm_store = self._wasm_store
        self.host, wasm_store.watch = host, host.watch
        wasm_store.refuel()
        while not _component_lock.acquire(timeout=_LOCK_POLL_S):
            host.watch()
        try:
            wasm_store.enter()
            reply = self._serve(wasm_store.store, request.decode())
        except (wasmtime.WasmtimeError, wasmtime.Trap, GuestStopped) as error:
            raise _reason(wasm_store, str(error)) from None
        finally:
            _component_lock.release()
            self.fuel_used = wasm_store.fuel_used
        return read_step(reply.encode())

    def copy_memory(self) -> MemoryCopy | None:
        return None

    def load(self, _image: Image) -> None:
        raise Failed("GUEST_BUILD_FAILED", "a component has no images")

    def reset(self) -> bool:
        return False  # The host cannot reach its memory.

    def close(self) -> None:
        self._wasm_store.close()

    def emit(self, channel: int, text: bytes) -> bool:
        return self.host.emit(channel, text)

    def _linker(self, guest: ComponentGuest) -> Linker:
        linker = Linker(guest.engine)
        with linker.root() as root:
            root.add_func("call-tool", self._recording_errors(self._call_tool))
            root.add_func("emit", self._recording_errors(self._emit))
            root.add_func("pass-time", self._recording_errors(self._pass_time))
            for imported in guest.wasi:
                with root.add_instance(imported.name) as interface:
                    for name in imported.resources:
                        interface.add_resource(name, resource_type(name), _no_destructor)
                    for name in imported.functions:
                        function = partial(self._call, host_function_for(imported.name, name))
                        interface.add_func(name, self._recording_errors(function))
        return linker

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self, *map(self._number, arguments))

    def _number(self, argument: Any) -> Any:
        """Convert handles to their numbers; this also ends their loan."""
        if isinstance(argument, list):
            return [self._number(item) for item in argument]
        if isinstance(argument, ResourceAny):
            return argument.to_host(self._wasm_store.store).rep
        return argument

    def _recording_errors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a host function so that its exception goes into ``stopped`` of the store."""
        wasm_store = self._wasm_store

        def called(_store: Any, *arguments: Any) -> Any:
            try:
                value = function(*arguments)
            except GuestStopped as stopped:
                wasm_store.stopped = stopped
                raise
            except BaseException as bug:
                wasm_store.stopped = GuestStopped(
                    "RUNTIME_ERROR", f"a host function failed: {bug!r}"
                )
                raise wasm_store.stopped from None
            wasm_store.enter()  # The function may have been in another store.
            return value

        return called

    def _call_tool(self, name: str, arguments: str) -> str:
        """Call the host without the lock, so that other components can run meanwhile."""
        _component_lock.release()
        try:
            return complete(self.host.call(name, arguments.encode())).decode()
        finally:
            _component_lock.acquire()

    def _emit(self, channel: int, text: str) -> bool:
        return self.host.emit(channel, text.encode())

    def _pass_time(self, duration_ns: int) -> None:
        self.environment.advance_clock(duration_ns)


def _no_destructor(_store: object, _number: int) -> None:
    """Do nothing: a handle has no resource."""


def _reason(wasm_store: ComponentStore, error: str) -> GuestStopped:
    """Why the guest stopped; wasmtime reports it as text only."""
    cause = error.rpartition("Caused by:")[2].strip()
    if "call stack exhausted" in cause:
        return wasm_store.reason(cause, wasmtime.TrapCode.STACK_OVERFLOW)
    if "beyond end of memory" in cause:
        wasm_store.stopped = GuestStopped("MEMORY_EXCEEDED", "the interpreter ran out of memory")
    return wasm_store.reason(cause, None)
