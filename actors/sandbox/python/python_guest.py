"""The Python guest, linked from core modules: its memory is in reach, so its sessions can sleep.

Owns one linked build and the way a step travels in and out of it. Sessions, limits and what the
host answers to tool calls are not its business.
"""

from __future__ import annotations

import struct
from hashlib import sha3_256
from typing import Any

import msgspec
import wasmtime

from rookery.actors.sandbox.contract import CheckStep, Host, Step
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.link import HOST, LinkPlan
from rookery.actors.sandbox.python.protocol import read_step
from rookery.actors.sandbox.python.wasi import host_function_for
from rookery.actors.sandbox.runtime.image_guest import GuestStore, ImageInstance
from rookery.actors.sandbox.runtime.memory_image import Pristine
from rookery.actors.sandbox.runtime.wasm import GuestStopped, Linker
from rookery.schemas.run import Language

__all__ = ["PythonGuest", "PythonInstance", "SilentHost"]

_MEMORY_BYTES_MAX = 4 << 30
"""Until a run brings its own limit: an image is loaded before."""
_WARM_UP = msgspec.json.encode(CheckStep(code="1 + 1", tools={}))


class SilentHost:
    """A host for programs that ask nothing and say nothing."""

    def call(self, name: str, _arguments: bytes) -> bytes:
        raise GuestStopped("RUNTIME_ERROR", f"nobody answers {name} here")

    def emit(self, _channel: int, _text: bytes) -> bool:
        return False

    def watch(self) -> None:
        pass


class PythonGuest:
    """Once a process and build: the modules, the host functions and the pristine memory."""

    language = Language.PYTHON

    def __init__(self, engine: wasmtime.Engine, cache: GuestCache, component: bytes = b"") -> None:
        """The own build, or the one that is given."""
        component = component or cache.component(stub_wasi=True)
        self.build = sha3_256(component).hexdigest()
        self.engine = engine
        self.plan = LinkPlan(component)
        self.plan.bind(cache.modules(engine, {i: self.plan.modules[i] for i in self.plan.used}))
        self.linker = Linker(engine)
        for function, kind in self.plan.host_functions.items():
            answer = _WORLD_FUNCTIONS.get(function.name) if function.module == HOST else None
            answer = answer or host_function_for(function.name, len(kind.params))
            self.linker.define(function.module.encode(), function.name.encode(), kind, answer)
        self.pristine = Pristine(self.new_store())

    @property
    def start(self) -> int:
        return self.pristine.checksum

    def new_store(self) -> PythonStore:
        """One that has been in its memory already: pages every run writes to are its own before
        anybody waits for it."""
        machine = PythonStore(self)
        machine.serve(_WARM_UP, SilentHost())
        return machine

    def instance(self) -> PythonInstance:
        return PythonInstance(self)


class PythonStore(GuestStore):
    """A store with the guest in it, as host functions see it."""

    host: Host

    def __init__(self, guest: PythonGuest) -> None:
        super().__init__(guest.engine, _MEMORY_BYTES_MAX)
        self.linked = guest.plan.instantiate(self, guest.linker)

    def serve(self, request: bytes, host: Host) -> bytes:
        self.host, self.watch = host, host.watch
        self.refuel()
        result = self.linked.serve(self.allocate_bytes(request), len(request))
        reply = self.read(*struct.unpack("<II", self.read(result, 8)))
        self.linked.after_serve(result)
        return reply

    def allocate_bytes(self, data: bytes) -> int:
        pointer = self.linked.allocate(0, 0, 1, len(data))
        if not pointer:
            text = f"{len(data)} bytes for the program do not fit into its memory"
            raise GuestStopped("MEMORY_EXCEEDED", text)
        self.write(pointer, data)
        return pointer

    def emit(self, channel: int, text: bytes) -> bool:
        return self.host.emit(channel, text)


class PythonInstance(ImageInstance[PythonStore]):
    _guest: PythonGuest

    def step(self, request: bytes, host: Host) -> Step:
        try:
            return read_step(self._wasm_store.serve(request, host))
        finally:
            self.fuel_used = self._wasm_store.fuel_used

    def state_beside_memory(self) -> dict[tuple[int, str], int]:
        """What an image does not hold, and must not need to."""
        return self._guest.plan.state_beside_memory(self._wasm_store, self._wasm_store.linked)


def _call_tool(machine: PythonStore, name: int, name_length: int, *rest: int) -> None:
    arguments, length, result = rest
    called = machine.read(name, name_length).decode(errors="replace")
    reply = machine.host.call(called, machine.read(arguments, length))
    machine.write(result, struct.pack("<II", machine.allocate_bytes(reply), len(reply)))


def _emit(machine: PythonStore, channel: int, text: int, length: int) -> int:
    return machine.host.emit(channel, machine.read(text, length))


def _pass_time(machine: PythonStore, duration_ns: int) -> None:
    machine.surroundings.advance_clock(duration_ns)


_WORLD_FUNCTIONS: dict[str, Any] = {"call-tool": _call_tool, "emit": _emit, "pass-time": _pass_time}
