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

from rookery.actors.sandbox.contract import Host, Image, Step, Surroundings
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.fallback.component_wasi import answer_to, resource_type, wasi_of
from rookery.actors.sandbox.python.protocol import read_step
from rookery.actors.sandbox.runtime.wasm import GuestStopped, Machine
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language

__all__ = ["ComponentGuest", "ComponentInstance"]

_MEMORY_BYTES_MAX = 4 << 30
_PATIENCE_S = 0.01
"""Between two looks at the limits of a run that waits to be let in."""
_one_at_a_time = threading.Lock()


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


class ComponentMachine(Machine):
    """A store whose memory cannot be seen."""

    size = 0


class ComponentInstance:
    """One interpreter that lives as long as its process."""

    host: Host

    def __init__(self, guest: ComponentGuest) -> None:
        self.surroundings = Surroundings()
        self.fuel_used = 0
        self.memory_bytes = 0
        self._machine = ComponentMachine(guest.engine, _MEMORY_BYTES_MAX)
        store = self._machine.store
        with _one_at_a_time:
            self._machine.enter()
            instance = self._linker(guest).instantiate(store, guest.component)
            serve = instance.get_func(store, "serve")
        if serve is None:
            raise Failed("GUEST_BUILD_FAILED", "the component exports no serve")
        self._serve = serve

    def limit_memory(self, size_bytes: int) -> None:
        self._machine.limit_memory(size_bytes)

    def step(self, request: bytes, host: Host) -> Step:
        machine = self._machine
        self.host, machine.watch = host, host.watch
        machine.refuel()
        while not _one_at_a_time.acquire(timeout=_PATIENCE_S):
            host.watch()
        try:
            machine.enter()
            reply = self._serve(machine.store, request.decode())
        except (wasmtime.WasmtimeError, wasmtime.Trap, GuestStopped) as error:
            raise _reason(machine, str(error)) from None
        finally:
            _one_at_a_time.release()
            self.fuel_used = machine.fuel_used
        return read_step(reply.encode())

    def image(self) -> Image | None:
        return None

    def load(self, _image: Image) -> None:
        raise Failed("GUEST_BUILD_FAILED", "a component has no images")

    def close(self) -> None:
        self._machine.close()

    def emitted(self, channel: int, text: bytes) -> bool:
        return self.host.emit(channel, text)

    def _linker(self, guest: ComponentGuest) -> Linker:
        linker = Linker(guest.engine)
        with linker.root() as root:
            root.add_func("call-tool", self._noted(self._call_tool))
            root.add_func("emit", self._noted(self._emit))
            root.add_func("pass-time", self._noted(self._pass_time))
            for wanted in guest.wasi:
                with root.add_instance(wanted.name) as interface:
                    for name in wanted.resources:
                        interface.add_resource(name, resource_type(name), _forget)
                    for name in wanted.functions:
                        answer = partial(self._answer, answer_to(wanted.name, name))
                        interface.add_func(name, self._noted(answer))
        return linker

    def _answer(self, answer: Callable[..., Any], *arguments: Any) -> Any:
        return answer(self, *map(self._number, arguments))

    def _number(self, argument: Any) -> Any:
        """A handle is lent, and given back by reading the number it was made with."""
        if isinstance(argument, list):
            return [self._number(item) for item in argument]
        if isinstance(argument, ResourceAny):
            return argument.to_host(self._machine.store).rep
        return argument

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What it raises stops the guest, and is found again whatever wasmtime-py makes of it."""
        machine = self._machine

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
        _one_at_a_time.release()
        try:
            return self.host.call(name, arguments.encode()).decode()
        finally:
            _one_at_a_time.acquire()

    def _emit(self, channel: int, text: str) -> bool:
        return self.host.emit(channel, text.encode())

    def _pass_time(self, duration_ns: int) -> None:
        self.surroundings.pass_time(duration_ns)


def _forget(_store: object, _number: int) -> None:
    """Nothing is kept open behind a handle."""


def _reason(machine: ComponentMachine, error: str) -> GuestStopped:
    """wasmtime tells it in words only, behind the guest's stack."""
    cause = error.rpartition("Caused by:")[2].strip()
    if "call stack exhausted" in cause:
        return machine.reason(cause, wasmtime.TrapCode.STACK_OVERFLOW)
    if "beyond end of memory" in cause:
        machine.stopped = GuestStopped("MEMORY_EXCEEDED", "the interpreter ran out of memory")
    return machine.reason(cause, None)
