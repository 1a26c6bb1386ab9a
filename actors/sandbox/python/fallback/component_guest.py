"""The fallback: the Python guest as one component, where its modules cannot be linked by hand.

Its memory is out of reach, so there are no images: sessions come back by running their runs again.
Slower, but the same semantics, and nothing of the machine it is on (``component_wasi``).
wasmtime-py raises what a host function raised from a place all threads share, so one thread at a
time is let in, and the instance's own note decides what happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from hashlib import sha3_256
from typing import Any

import wasmtime
from wasmtime.component import Linker, ResourceAny

from rookery.actors.sandbox.contract import GuestEnvironment, Host, Image, Step
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.fallback.component_wasi import (
    host_function_for,
    resource_type,
    wasi_of,
)
from rookery.actors.sandbox.python.protocol import read_step
from rookery.actors.sandbox.runtime.wasm import GuestStopped, WasmStore
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language

__all__ = ["ComponentGuest", "ComponentInstance"]

_MEMORY_BYTES_MAX = 4 << 30
_LOCK_POLL_S = 0.01
"""Between two looks at the limits of a run that waits to be let in."""
_component_lock = threading.Lock()


class ComponentGuest:
    """Once a process: the compiled component."""

    language = Language.PYTHON
    start = 0

    def __init__(self, engine: wasmtime.Engine, cache: GuestCache) -> None:
        source = cache.component(stub_wasi=False)
        self.build = sha3_256(source).hexdigest()
        self.engine = engine
        self.component = cache.native_component(engine, source)
        self.wasi = wasi_of(engine, self.component)

    def instance(self) -> ComponentInstance:
        return ComponentInstance(self)


class ComponentStore(WasmStore):
    """A store whose memory cannot be seen."""

    size = 0


class ComponentInstance:
    """One interpreter that lives as long as its process."""

    host: Host

    def __init__(self, guest: ComponentGuest) -> None:
        self.surroundings = GuestEnvironment()
        self.fuel_used = 0
        self.memory_bytes = 0
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

    def step(self, request: bytes, host: Host) -> Step:
        machine = self._wasm_store
        self.host, machine.watch = host, host.watch
        machine.refuel()
        while not _component_lock.acquire(timeout=_LOCK_POLL_S):
            host.watch()
        try:
            machine.enter()
            reply = self._serve(machine.store, request.decode())
        except (wasmtime.WasmtimeError, wasmtime.Trap, GuestStopped) as error:
            raise _reason(machine, str(error)) from None
        finally:
            _component_lock.release()
            self.fuel_used = machine.fuel_used
        return read_step(reply.encode())

    def image(self) -> Image | None:
        return None

    def load(self, _image: Image) -> None:
        raise Failed("GUEST_BUILD_FAILED", "a component has no images")

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
            for wanted in guest.wasi:
                with root.add_instance(wanted.name) as interface:
                    for name in wanted.resources:
                        interface.add_resource(name, resource_type(name), _no_destructor)
                    for name in wanted.functions:
                        answer = partial(self._answer, host_function_for(wanted.name, name))
                        interface.add_func(name, self._recording_errors(answer))
        return linker

    def _answer(self, answer: Callable[..., Any], *arguments: Any) -> Any:
        return answer(self, *map(self._number, arguments))

    def _number(self, argument: Any) -> Any:
        """A handle is lent, and given back by reading the number it was made with."""
        if isinstance(argument, list):
            return [self._number(item) for item in argument]
        if isinstance(argument, ResourceAny):
            return argument.to_host(self._wasm_store.store).rep
        return argument

    def _recording_errors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What it raises stops the guest, and is found again whatever wasmtime-py makes of it."""
        machine = self._wasm_store

        def called(_store: Any, *arguments: Any) -> Any:
            try:
                value = function(*arguments)
            except GuestStopped as stopped:
                machine.stopped = stopped
                raise
            except BaseException as bug:
                machine.stopped = GuestStopped("RUNTIME_ERROR", f"a host function failed: {bug!r}")
                raise machine.stopped from None
            machine.enter()  # The function may have been in another store.
            return value

        return called

    def _call_tool(self, name: str, arguments: str) -> str:
        """While the outside world is busy, others are let in."""
        _component_lock.release()
        try:
            return self.host.call(name, arguments.encode()).decode()
        finally:
            _component_lock.acquire()

    def _emit(self, channel: int, text: str) -> bool:
        return self.host.emit(channel, text.encode())

    def _pass_time(self, duration_ns: int) -> None:
        self.surroundings.advance_clock(duration_ns)


def _no_destructor(_store: object, _number: int) -> None:
    """Nothing is kept open behind a handle."""


def _reason(machine: ComponentStore, error: str) -> GuestStopped:
    """wasmtime tells it in words only, behind the guest's stack."""
    cause = error.rpartition("Caused by:")[2].strip()
    if "call stack exhausted" in cause:
        return machine.reason(cause, wasmtime.TrapCode.STACK_OVERFLOW)
    if "beyond end of memory" in cause:
        machine.stopped = GuestStopped("MEMORY_EXCEEDED", "the interpreter ran out of memory")
    return machine.reason(cause, None)
