"""A guest on a fiber is suspended and continued on any thread, and the process never aborts.

These tests are collected where fibers can be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any

import pytest
import wasmtime
from wasmtime import _ffi as ffi

from rookery.actors.sandbox import PendingResult
from rookery.actors.sandbox.contract import Pause
from rookery.actors.sandbox.runtime import fibers
from rookery.actors.sandbox.runtime.suspension import (
    SuspendableFunction,
    SuspendingLinker,
    complete,
)
from rookery.actors.sandbox.runtime.wasm import (
    Engine,
    Externs,
    GuestStopped,
    PreparedFunction,
    WasmStore,
    make_engine,
)

MODULE = """(module
  (import "host" "call" (func $call (param i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "ask") (param i32) (result i32) (call $call (local.get 0)))
  (func (export "twice") (param i32) (result i32)
    (i32.add (call $call (local.get 0)) (call $call (local.get 0))))
  (func $nest (export "nest") (param i32) (result i32)
    (if (result i32) (local.get 0)
      (then (i32.add (i32.const 1) (call $nest (i32.sub (local.get 0) (i32.const 1)))))
      (else (call $call (i32.const 0)))))
  (func $overflow (export "overflow") (param i32) (result i32)
    (i32.add (call $call (local.get 0)) (call $overflow (local.get 0))))
  (func $endless (export "endless") (param i32) (result i32)
    (i32.add (i32.const 1) (call $endless (local.get 0))))
  (func (export "count") (param i32) (result i32)
    (loop $again
      (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
      (br_if $again (local.get 0)))
    (i32.const 7)))"""

HostFunction = Callable[[int], Generator[Pause, None, int]]


class SmallGuest:
    """A module whose only import is a host function that may suspend it."""

    def __init__(self, call: HostFunction) -> None:
        self.engine = make_engine()
        module = wasmtime.Module(self.engine, MODULE)
        linker = SuspendingLinker(self.engine)
        linker.define_suspending(
            b"host", b"call", module.imports[0].type, lambda _store, number: call(number)
        )
        self.store = WasmStore(self.engine, 1 << 20)
        imports = Externs(1)
        linker.fetch(self.store, b"host", b"call", imports, 0)
        self._instance = self.store.instantiate(module, imports)
        memory = Externs(1)
        self.store.fetch(self._instance, b"memory", memory, 0)
        self.store.use(memory.first)
        self._kept = [linker, imports, memory]

    def steps(self, name: str, number: int = 1) -> Generator[Pause, None, int]:
        function = SuspendableFunction(self.store, self._export(name), 1, 1)
        result = yield from function.steps(number)
        assert self._kept  # The host functions live as long as the steps.
        return result

    def function(self, name: str) -> PreparedFunction:
        return PreparedFunction(self.store, self._export(name), 1, 1)

    def _export(self, name: str) -> Any:
        found = Externs(1)
        self.store.fetch(self._instance, name.encode(), found, 0)
        self._kept.append(found)
        return found.first


def waiting(number: int) -> Generator[Pause, None, int]:
    """Wait for a result and return it, with the argument."""
    result: Future[Any] = Future()
    yield result
    return int(result.result()) + number


def result_of(steps: Generator[Pause, None, int]) -> int:
    """The value of steps that do not pause again."""
    with pytest.raises(StopIteration) as end:
        next(steps)
    return int(end.value.value)


def on_a_thread(call: Callable[[], object]) -> object:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def awaited(steps: Generator[Pause, None, int]) -> PendingResult:
    """The result that the guest waits for."""
    pause = next(steps)
    assert pause is not None
    return pause


def test_the_bindings_have_every_name_that_fibers_need():
    assert [name for name in fibers.NEEDED if not hasattr(ffi, name)] == []
    assert make_engine().has_fibers
    assert not make_engine(has_fibers=False).has_fibers


@pytest.mark.parametrize("name", fibers.NEEDED)
def test_without_one_of_the_names_guests_block_threads(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(ffi, name)
    assert name in fibers.obstacle()
    assert not make_engine().has_fibers


def test_a_python_that_measures_stacks_has_no_fibers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fibers.sys, "version_info", (3, 14, 0))
    assert "stack" in fibers.obstacle()
    assert not make_engine().has_fibers


def test_any_thread_continues_a_suspended_guest():
    steps = SmallGuest(waiting).steps("twice", 5)
    first: Any = on_a_thread(lambda: next(steps))
    first.set_result(1)
    second: Any = on_a_thread(lambda: next(steps))
    second.set_result(2)
    assert result_of(steps) == 13


def test_a_result_reaches_the_guest_and_a_stop_ends_it():
    guest = SmallGuest(waiting)
    steps = guest.steps("twice", 5)
    for _ in range(2):
        result = awaited(steps)
        result.set_result(10)
    assert result_of(steps) == 30

    def stopping(number: int) -> Generator[Pause, None, int]:
        yield from waiting(number)
        raise GuestStopped("CANCELLED", "enough")

    steps = SmallGuest(stopping).steps("ask")
    awaited(steps).set_result(1)
    with pytest.raises(GuestStopped, match="enough"):
        next(steps)


@pytest.mark.parametrize("how", ["steps", "store", "store first"])
def test_a_suspended_guest_can_be_dropped(how: str):
    guest = SmallGuest(waiting)
    steps = guest.steps("nest", 1000)
    assert awaited(steps)
    if how != "steps":
        guest.store.close()
    if how != "store":
        steps.close()
    del steps, guest
    assert complete(SmallGuest(lambda number: done(number + 1)).steps("ask", 1)) == 2


def done(number: int) -> Generator[Pause, None, int]:
    yield from ()
    return number


@pytest.mark.parametrize("depth", [1, 100, 10_000, 20_000])
def test_a_guest_is_suspended_at_any_depth(depth: int):
    steps = SmallGuest(waiting).steps("nest", depth)
    awaited(steps).set_result(3)
    assert result_of(steps) == depth + 3


@pytest.mark.parametrize("depth", [1, 10_000, 20_000])
def test_endless_recursion_in_a_call_that_a_host_function_makes_ends_the_guest_only(depth: int):
    def call(_number: int) -> Generator[Pause, None, int]:
        guest.function("endless")(1)
        yield from ()
        return 1

    guest = SmallGuest(call)
    with pytest.raises(GuestStopped, match="out of stack"):
        complete(guest.steps("nest", depth))


@pytest.mark.parametrize("has_fibers", [True, False])
def test_endless_recursion_with_host_calls_ends_the_guest_only(
    has_fibers: bool, monkeypatch: pytest.MonkeyPatch
):
    """The host functions run above the deepest frame of the guest, with Python of their own."""
    if not has_fibers:
        monkeypatch.setattr(fibers, "obstacle", lambda: "refused")
    deepest = 0

    def call(number: int) -> Generator[Pause, None, int]:
        nonlocal deepest
        deepest += 1
        sorted(range(50), key=lambda one: -one)
        return (yield from done(number))

    with pytest.raises(GuestStopped, match="out of stack"):
        complete(SmallGuest(call).steps("overflow"))
    assert deepest > 10_000


def test_a_guest_pauses_at_a_tick_only_where_it_can():
    """Not in a call that a host function makes, and not outside its fiber."""
    inside: list[int] = []

    def call(_number: int) -> Generator[Pause, None, int]:
        guest.engine.increment_epoch()
        inside.append(guest.function("count")(1000))
        return (yield from done(1))

    guest = SmallGuest(call)
    ticks = 0

    def watch() -> bool:
        nonlocal ticks
        ticks += 1
        return True

    guest.store.watch = watch
    guest.engine.increment_epoch()
    assert guest.function("count")(1000) == 7
    assert ticks == 1
    assert result_of(guest.steps("ask")) == 1
    assert (inside, ticks) == ([7], 2)
    steps = guest.steps("count", 1000)
    guest.engine.increment_epoch()
    assert next(steps) is None
    assert result_of(steps) == 7
    assert ticks == 3


def test_fuel_is_the_same_with_and_without_fibers():
    used = []
    for engine in (make_engine(), make_engine(has_fibers=False)):
        assert isinstance(engine, Engine)
        guest = SmallGuest(done)
        guest.store.refuel()
        complete(guest.steps("twice"))
        used.append(guest.store.fuel_used)
    assert used[0] == used[1] > 0
