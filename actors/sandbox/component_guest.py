"""The fallback: the Python guest as one component, where its modules cannot be linked by hand.

Its memory is out of reach, so there are no images: sessions come back by running their runs again.
Slower, but the same semantics. wasmtime-py raises what a host function raised from a place all
threads share, so one thread at a time is let in, and the instance's own note decides what happened.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha3_256
from typing import Any

import wasmtime
from wasmtime.component import Linker, Record

from rookery.actors.sandbox.contract import Host, Image, Step, Surroundings
from rookery.actors.sandbox.guest_build import GuestCache
from rookery.actors.sandbox.guest_protocol import read_step
from rookery.actors.sandbox.wasm import GuestStopped, Machine
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language

__all__ = ["ComponentGuest", "ComponentInstance"]

_MEMORY_BYTES_MAX = 4 << 30
_RANDOM, _WALL_CLOCK = "wasi:random/random@0.2.9", "wasi:clocks/wall-clock@0.2.9"
"""The versions componentize-py writes; an interface is replaced as a whole, under its own name."""
_one_at_a_time = threading.RLock()


class ComponentGuest:
    """Once a process: the compiled component."""

    language = Language.PYTHON
    start = 0

    def __init__(self, engine: wasmtime.Engine, cache: GuestCache) -> None:
        source = cache.component(stub_wasi=False)
        self.build = sha3_256(source).hexdigest()
        self.engine = engine
        self.component = cache.native_component(engine, source)

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
        store.set_wasi(wasmtime.WasiConfig())
        with _one_at_a_time:
            self._machine.enter()
            instance = self._linker(guest.engine).instantiate(store, guest.component)
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
        with _one_at_a_time:
            machine.enter()
            try:
                reply = self._serve(machine.store, request.decode())
            except (wasmtime.WasmtimeError, wasmtime.Trap, GuestStopped) as error:
                raise _reason(machine, str(error)) from None
            finally:
                self.fuel_used = machine.fuel_used
        return read_step(reply.encode())

    def image(self) -> Image | None:
        return None

    def load(self, _image: Image) -> None:
        raise Failed("GUEST_BUILD_FAILED", "a component has no images")

    def close(self) -> None:
        self._machine.close()

    def _linker(self, engine: wasmtime.Engine) -> Linker:
        linker = Linker(engine)
        linker.allow_shadowing = True
        linker.add_wasip2()
        with linker.root() as root:
            root.add_func("call-tool", self._noted(self._call_tool))
            root.add_func("emit", self._noted(self._emit))
            root.add_func("pass-time", self._noted(self._pass_time))
            with root.add_instance(_RANDOM) as interface:
                interface.add_func("get-random-bytes", self._noted(self._random_bytes))
                interface.add_func("get-random-u64", self._noted(self._random_number))
            with root.add_instance(_WALL_CLOCK) as interface:
                interface.add_func("now", self._noted(self._now))
                interface.add_func("resolution", self._noted(self._resolution))
        return linker

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
        return self.host.call(name, arguments.encode()).decode()

    def _emit(self, channel: int, text: str) -> bool:
        return self.host.emit(channel, text.encode())

    def _pass_time(self, duration_ns: int) -> None:
        self.surroundings.pass_time(duration_ns)

    def _random_bytes(self, count: int) -> bytes:
        return self.surroundings.random_bytes(count)

    def _random_number(self) -> int:
        return int.from_bytes(self.surroundings.random_bytes(8))

    def _now(self) -> Record:
        seconds, nanoseconds = divmod(self.surroundings.read_clock_ns(), 10**9)
        return _instant(seconds, nanoseconds)

    def _resolution(self) -> Record:
        return _instant(0, 1000)


def _reason(machine: ComponentMachine, error: str) -> GuestStopped:
    """wasmtime tells it in words only, behind the guest's stack."""
    cause = error.rpartition("Caused by:")[2].strip()
    if "call stack exhausted" in cause:
        return machine.reason(cause, wasmtime.TrapCode.STACK_OVERFLOW)
    if "beyond end of memory" in cause:
        machine.stopped = GuestStopped("MEMORY_EXCEEDED", "the interpreter ran out of memory")
    return machine.reason(cause, None)


def _instant(seconds: int, nanoseconds: int) -> Record:
    record = Record()
    vars(record).update(seconds=seconds, nanoseconds=nanoseconds)
    return record
