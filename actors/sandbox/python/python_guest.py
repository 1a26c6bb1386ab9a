"""The Python guest, linked from core modules, and its replies, which are validated."""

from __future__ import annotations

import struct
from collections.abc import Generator
from hashlib import sha3_256
from typing import Any

import msgspec

from rookery.actors.sandbox.contract import (
    QUICK_BYTES,
    CheckStep,
    Host,
    Pause,
    Step,
    StepEnded,
    StepPauses,
)
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.link import HOST, HostFunction, LinkPlan
from rookery.actors.sandbox.python.wasi import host_function_for
from rookery.actors.sandbox.runtime.guest_values import (
    StepReply,
    bounded_error,
    ended_step,
    is_too_deep,
)
from rookery.actors.sandbox.runtime.image_guest import GuestStore, ImageInstance, SilentHost
from rookery.actors.sandbox.runtime.memory_image import Pristine
from rookery.actors.sandbox.runtime.suspension import SuspendingLinker, complete
from rookery.actors.sandbox.runtime.wasm import PAGE_BYTES, Engine, Externs, GuestStopped
from rookery.schemas.run import ErrorObject, Language

__all__ = [
    "PythonGuest",
    "PythonInstance",
    "read_step",
]

# --- protocol -------------------------------------------------------------------------------------

# Reads the JSON replies of a guest and validates them, because a guest may be hostile.


_decode = msgspec.json.Decoder(StepReply).decode
_LOST_EXCEPTION = "returned NULL without setting an exception"
"""What CPython's ``SystemError`` says of a function that failed and lost its exception."""


def read_step(reply: bytes) -> Step:
    """The step in a guest's reply."""
    if is_too_deep(reply):  # The guest checks every value itself.
        raise GuestStopped("RUNTIME_ERROR", "the guest's reply is nested too deep")
    try:
        decoded = _decode(reply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise GuestStopped("RUNTIME_ERROR", f"the guest's reply is unreadable: {error}") from None
    if decoded.waits is not None:
        return decoded.waits
    if decoded.error is None:
        return ended_step(decoded)
    return StepEnded(error=bounded_error(decoded.error))


# --- python guest ---------------------------------------------------------------------------------

# The Python guest, linked from core modules, so that its instances have images.
#
# It holds one linked build and passes the requests and replies of steps through the guest's memory.


_WARM_UP = msgspec.json.encode(CheckStep(code="1 + 1", tools={}))


class PythonGuest:
    """One build in a process: modules, host functions and the memory of a new instance."""

    language = Language.PYTHON

    def __init__(self, engine: Engine, cache: GuestCache, component: bytes = b"") -> None:
        """``component`` is another build than the own one."""
        if component:
            self.build = sha3_256(component).hexdigest()
        else:
            component, self.build = cache.own_build()
        self.engine = engine
        self.plan = LinkPlan(component)
        self.plan.bind(cache.modules(engine, {i: self.plan.modules[i] for i in self.plan.used}))
        self.linker = SuspendingLinker(engine)
        for function, kind in self.plan.host_functions.items():
            name = function.module.encode(), function.name.encode()
            if function == _CALL_TOOL:
                self.linker.define_suspending(*name, kind, _call_tool)
                continue
            answer = _WORLD_FUNCTIONS.get(function.name) if function.module == HOST else None
            answer = answer or host_function_for(function.name, len(kind.params))
            self.linker.define(*name, kind, answer)
        store = self.new_store()
        self.pristine = Pristine(store, store.global_values())

    @property
    def start(self) -> int:
        return self.pristine.checksum

    def new_store(self) -> PythonStore:
        """A store that has executed a step, so that the pages that every run writes are already
        copied."""
        store = PythonStore(self)
        complete(store.serve(_WARM_UP, SilentHost()))
        return store

    def instance(self) -> PythonInstance:
        return PythonInstance(self)


class PythonStore(GuestStore):
    """A store with a linked guest, for host functions."""

    def __init__(self, guest: PythonGuest) -> None:
        super().__init__(guest.engine)
        self._plan = guest.plan
        self.linked = self._plan.instantiate(self, guest.linker)

    def mutable_externs(self) -> tuple[Externs, Externs]:
        return self._plan.mutable_externs(self, self.linked)

    def serve(self, request: bytes, host: Host) -> Generator[Pause, None, bytes]:
        self.host, self.watch = host, host.watch
        self.refuel()
        serving = self.linked.serve.steps(self.allocate_bytes(request), len(request))
        result = yield from serving
        reply = self.read(*struct.unpack("<II", self.read(result, 8)))
        yield from self.linked.after_serve.steps(result)
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

    def step(self, request: bytes, host: Host) -> StepPauses:
        self.is_between_steps = False
        try:
            reply = yield from self._wasm_store.serve(request, host)
            if len(reply) > QUICK_BYTES:
                yield None
            step = read_step(reply)
        finally:
            self.fuel_used = self._wasm_store.fuel_used
        self.is_between_steps = True
        if isinstance(step, StepEnded) and step.error is not None:
            return msgspec.structs.replace(step, error=self._restore_memory_error(step.error))
        return step

    def _restore_memory_error(self, error: ErrorObject) -> ErrorObject:
        """CPython loses a ``MemoryError`` where a ``deque`` is deleted without memory for a block:
        a ``SystemError`` takes its place."""
        store = self._wasm_store
        is_full = store.memory_bytes_max - store.size < PAGE_BYTES
        if not is_full or _LOST_EXCEPTION not in error.message:
            return error
        return msgspec.structs.replace(error, code="MEMORY_EXCEEDED", message="MemoryError")


def _call_tool(
    store: PythonStore, name: int, name_length: int, *rest: int
) -> Generator[Pause, None, None]:
    arguments, length, result = rest
    called = store.read(name, name_length).decode(errors="replace")
    reply = yield from store.host.call(called, store.read(arguments, length))
    store.write(result, struct.pack("<II", store.allocate_bytes(reply), len(reply)))


def _emit(store: PythonStore, channel: int, text: int, length: int) -> int:
    return store.host.emit(channel, store.read(text, length))


def _pass_time(store: PythonStore, duration_ns: int) -> None:
    store.environment.advance_clock(duration_ns)


_CALL_TOOL = HostFunction(HOST, "call-tool")
_WORLD_FUNCTIONS: dict[str, Any] = {"emit": _emit, "pass-time": _pass_time}
