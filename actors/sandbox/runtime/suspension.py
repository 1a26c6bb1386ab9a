"""Functions of guests that can be suspended: on a fiber, or by blocking the thread.

A step of a guest is a generator. It yields a ``Pause`` when the guest is suspended: the result that
it waits for, or ``None`` when it has used up its slice of a thread that must not be blocked. On an
engine without fibers a guest blocks its thread instead, and its steps yield nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from rookery.actors.sandbox.contract import Pause
from rookery.actors.sandbox.runtime.fibers import (
    FiberCall,
    HostSteps,
    PendingHostCall,
    define_suspending,
)
from rookery.actors.sandbox.runtime.wasm import (
    Extern,
    GuestStopped,
    Linker,
    PreparedFunction,
    WasmStore,
    reason,
    running_store,
)

__all__ = ["SuspendableFunction", "SuspendingLinker", "complete"]

T = TypeVar("T")


def complete(steps: Generator[Pause, None, T]) -> T:
    """Take all steps on this thread, which blocks at every pause."""
    while True:
        try:
            result = next(steps)
        except StopIteration as end:
            value: T = end.value
            return value
        if result is not None:
            with suppress(CancelledError):
                result.exception()  # Waits.


class SuspendableFunction(PreparedFunction):
    """An exported function during which a host function may suspend the guest."""

    def __init__(self, store: WasmStore, function: Extern, parameters: int, results: int) -> None:
        super().__init__(store, function, parameters, results)
        self._has_fibers = store.has_fibers
        if self._has_fibers:
            self._call = FiberCall(store.context, self._function, parameters, results)

    def steps(self, *arguments: int) -> Generator[Pause, None, int]:
        if not self._has_fibers:
            return self(*arguments)
        store, call = self._wasm_store, self._call
        call.begin(arguments)
        store.drop_fiber = call.drop
        try:
            while True:
                store.enter()
                store.may_pause, store.pause = True, None
                ended = call.proceed()
                store.may_pause = False
                if ended:
                    break
                yield store.pause
        finally:
            store.enter()
            call.drop()
        if call.error or call.trap:
            raise reason(store, call.error, call.trap)
        return call.result


class SuspendingLinker(Linker):
    """A linker that can define host functions that suspend the guest."""

    def define_suspending(
        self, module: bytes, name: bytes, kind: Any, function: Callable[..., HostSteps]
    ) -> None:
        """Define ``function(store, *integers)``, a generator that yields pauses. The guest must
        call it only from a ``SuspendableFunction``."""
        if not self._has_fibers:
            self.define(module, name, kind, lambda *given: complete(function(*given)))
            return

        def begin(arguments: tuple[int, ...], result_at: int, trap_at: int) -> None:
            store = running_store()
            store.host_call = PendingHostCall(function(store, *arguments), result_at, trap_at)

        kept = define_suspending(self._linker, module, name, kind, begin=begin, proceed=_proceed)
        self._callbacks.append(kept)


def _proceed() -> bool:
    """Continue the host call of the running store; returns whether it has ended."""
    store = running_store()
    call: PendingHostCall = store.host_call
    try:
        store.pause = next(call.steps)
    except StopIteration as end:
        call.finish(end.value)
    except GuestStopped as stopped:
        store.stopped = stopped
        call.stop()
    except BaseException as bug:
        store.stopped = GuestStopped("RUNTIME_ERROR", f"a host function failed: {bug!r}")
        call.stop()
    else:
        return False
    finally:
        store.enter()  # The function may have entered another store.
    return True
