"""Instances whose whole state is their linear memory, and the pool of those that are ready."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Generic, Protocol, TypeVar

import msgspec

from rookery.actors.sandbox.contract import (
    CheckStep,
    Guest,
    GuestEnvironment,
    Host,
    Image,
    Instance,
    MemoryCopy,
    Pause,
    StepEnded,
    Tool,
)
from rookery.actors.sandbox.runtime.memory_image import (
    Pristine,
    apply_pages,
    compressed,
    dirty_pages,
    restore_pages,
)
from rookery.actors.sandbox.runtime.mentions import Mentions, names_for
from rookery.actors.sandbox.runtime.suspension import complete
from rookery.actors.sandbox.runtime.wasm import (
    Engine,
    Externs,
    GlobalValues,
    GuestStopped,
    WasmStore,
)
from rookery.actors.sandbox.sessions.guest_run import GuestRun, SavedRun, execute_to_stop
from rookery.actors.sandbox.sessions.meters import RunMeters
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.schemas.run import SessionLimits

__all__ = [
    "GuestStore",
    "ImageInstance",
    "InstancePool",
    "SilentHost",
]

# --- image guest ----------------------------------------------------------------------------------

# The memory can be saved as an image and loaded into another instance of the same build. Subclasses
# implement the steps.


_TOUCHED_BYTES = 2 << 20
"""Memory that most programs touch of a new instance, with its stack."""
_MEMORY_BYTES_MAX = 4 << 30
"""The limit until a run sets its own; an image is loaded before that."""


class SilentHost:
    """A host for programs without tools and output."""

    def call(self, name: str, _arguments: bytes) -> Generator[Pause, None, bytes]:
        raise GuestStopped("RUNTIME_ERROR", f"there is no tool {name}")

    def emit(self, _channel: int, _text: bytes) -> bool:
        return False

    def watch(self) -> bool:
        return False


class GuestStore(WasmStore, ABC):
    """A store with its own clock and randomness."""

    _globals: GlobalValues | None = None

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, _MEMORY_BYTES_MAX)
        self.restart()

    def restart(self) -> None:
        """Forget all about earlier runs."""
        self.clear(_MEMORY_BYTES_MAX)
        self.environment = GuestEnvironment()
        self.host: Host = SilentHost()

    @abstractmethod
    def mutable_externs(self) -> tuple[Externs, Externs]:
        """The mutable globals, which are of type ``i32``, and the tables."""

    def global_values(self) -> bytes:
        """The values of the mutable globals and the lengths of the tables."""
        if self._globals is None:
            self._globals = GlobalValues(*self.mutable_externs())
        return self._globals.read(self)


M = TypeVar("M", bound=GuestStore)
M_co = TypeVar("M_co", bound=GuestStore, covariant=True)


class ImageGuest(Protocol[M_co]):
    @property
    def pristine(self) -> Pristine:
        """The memory of a new instance."""

    def new_store(self) -> M_co: ...


class ImageInstance(Generic[M]):
    """One interpreter of a build, with images."""

    def __init__(self, guest: ImageGuest[M]) -> None:
        self._guest = guest  # Keeps its host functions alive.
        self._wasm_store = guest.new_store()
        self.fuel_used = 0
        self.is_between_steps = True
        """Whether the last step ended, so that no fiber is suspended and nothing trapped."""

    @property
    def environment(self) -> GuestEnvironment:
        return self._wasm_store.environment

    @environment.setter
    def environment(self, value: GuestEnvironment) -> None:
        self._wasm_store.environment = value

    @property
    def has_fibers(self) -> bool:
        return self._wasm_store.has_fibers

    @property
    def memory_bytes(self) -> int:
        return self._wasm_store.size

    @property
    def own_bytes(self) -> int:
        return _TOUCHED_BYTES + max(0, self._wasm_store.size - self._guest.pristine.size)

    @property
    def has_initial_globals(self) -> bool:
        """Whether all state outside the memory is that of a new instance."""
        return self._wasm_store.global_values() == self._guest.pristine.globals

    @property
    def is_new(self) -> bool:
        """Whether this is a new instance, by its memory, byte for byte, and by all other state."""
        return self.has_initial_globals and self._guest.pristine.is_in(self._wasm_store)

    def limit_memory(self, size_bytes: int) -> None:
        self._wasm_store.limit_memory(size_bytes)

    def copy_memory(self) -> MemoryCopy:
        pages = dirty_pages(self._wasm_store, self._guest.pristine)
        environment = self.environment.copy()
        return lambda: Image(compressed(pages), environment)

    def load(self, image: Image) -> None:
        apply_pages(self._wasm_store, image.memory)
        self.environment = image.surroundings.copy()

    def reset(self) -> bool:
        store, pristine = self._wasm_store, self._guest.pristine
        if not self.is_between_steps or not restore_pages(store, pristine):
            return False
        store.stack_pointer = pristine.stack_pointer
        if not self.has_initial_globals:
            return False
        store.restart()
        self.fuel_used = 0
        return True

    def close(self) -> None:
        self._wasm_store.close()


# --- instance pool --------------------------------------------------------------------------------

# Instances of one guest that are ready, because making one is slow: made in advance, or used by
# sessions before and reset since.
#
# A source is checked in such an instance, too, and no other source before it is reset: a source may
# be made to run while it is checked.


_READY_MAX = 16
"""As many sessions may begin at once; each instance has 2 MB."""


class InstancePool:
    """The pool of one guest. Call ``fill`` after a run: making an instance delays other work."""

    def __init__(
        self, guest: Guest, count: int, submit: Callable[[Callable[[], None]], None]
    ) -> None:
        self.guest = guest
        self._count, self._submit = count, submit
        self._ready: deque[Instance] = deque()
        self._lock = threading.Lock()
        self._filling = self._closed = False

    def fill(self) -> None:
        with self._lock:
            if self._filling or self._closed or len(self._ready) >= self._count:
                return
            self._filling = True
        self._submit(self._add_instance)

    @property
    def is_ready(self) -> bool:
        try:
            return self._ready[-1].has_fibers
        except IndexError:
            return False

    def acquire(self) -> Instance:
        try:
            return self._ready.pop()  # The last used one, whose memory the processor may have.
        except IndexError:
            return self.guest.instance()

    def release(self, instance: Instance) -> None:
        """Reset an instance for another session, or close it."""
        try:
            if len(self._ready) < _READY_MAX and instance.reset():
                with self._lock:
                    if not self._closed:
                        self._ready.append(instance)
                        return
        except BaseException:
            instance.close()
            raise
        instance.close()

    def check(self, run: GuestRun) -> StepEnded:
        """Drive a run of ``check_run``."""
        instance = self.acquire()
        try:
            step = complete(execute_to_stop(run, instance))
        except BaseException:
            instance.close()
            raise
        self.release(instance)
        assert isinstance(step, StepEnded)
        return step

    def close(self) -> None:
        with self._lock:
            self._closed = True
            while self._ready:
                self._ready.popleft().close()

    def check_run(self, code: str, tools: Mapping[str, Tool], limits: SessionLimits) -> GuestRun:
        """A run that only checks a source."""
        mentions = Mentions().after(code, self.guest.language)
        check = CheckStep(code=code, tools=names_for(tools, mentions))
        program = msgspec.json.encode(check)
        log = RunLog(program=program, limits=limits, tools={}, now_ns=0, entries=[])
        return GuestRun(SavedRun(log, RunMeters()))

    def _add_instance(self) -> None:
        try:
            instance = self.guest.instance()
        except Exception:  # ``acquire`` makes an instance, too, and raises the error.
            with self._lock:
                self._filling = False
            return
        with self._lock:
            self._filling = False
            if self._closed:
                instance.close()
            else:
                self._ready.append(instance)
        self.fill()
