"""A guest whose reset instances are compared with a new one: all memory, globals, tables and what
the host stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wasmtime
from wasmtime import _ffi as ffi

from rookery.actors.sandbox.contract import GuestEnvironment
from rookery.actors.sandbox.runtime.image_guest import ImageInstance, SilentHost

__all__ = ["CheckedGuest", "differences"]

AnyInstance = ImageInstance[Any]
_CLEARED = {"stopped": None, "may_pause": False, "pause": None, "host_call": None}
"""What a store has before its first run."""


class CheckedGuest:
    """A guest like the other, for a ``Sandbox``."""

    def __init__(self, guest: Any) -> None:
        self._guest = guest
        self.fresh: AnyInstance = guest.instance()
        self.resets = 0
        self.on_reset: Callable[[], None] = lambda: None
        self.found: list[str] = []
        """What was wrong with instances that were reset."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def instance(self) -> AnyInstance:
        instance: AnyInstance = self._guest.instance()
        tables, reset = table_entries(instance), instance.reset

        def checked_reset() -> bool:
            if not reset():
                return False
            self.resets += 1
            self.on_reset()
            self.found += differences(instance, self.fresh)
            if table_entries(instance) != tables:
                self.found.append("an entry of a table")
            return True

        instance.reset = checked_reset  # type: ignore[method-assign]
        return instance


def differences(instance: AnyInstance, fresh: AnyInstance) -> list[str]:
    """What a reset instance has that a new one has not."""
    store, other = instance._wasm_store, fresh._wasm_store
    found = []
    if store.read(0, store.size) != other.read(0, other.size):
        found.append("memory")
    if not instance.is_new:
        found.append("it is not new")
    if store.global_values() != other.global_values():
        found.append("a global, or the length of a table")
    if (store.stack_pointer, instance.fuel_used) != (other.stack_pointer, 0):
        found.append("the stack pointer or the fuel")
    found += [name for name, value in _CLEARED.items() if getattr(store, name) is not value]
    if store.memory_bytes_max != other.memory_bytes_max:
        found.append("the limit of the memory")
    if store.environment != GuestEnvironment() or not isinstance(store.host, SilentHost):
        found.append("the host of the last run")
    return found


def table_entries(instance: AnyInstance) -> list[bytes]:
    """The functions in the exported tables, as the engine identifies them."""
    store = instance._wasm_store
    _, tables = store.mutable_externs()
    found = []
    for place in range(tables.count):
        table = wasmtime.Table._from_raw(tables.array[place].of.table)
        for index in range(table.size(store.store)):
            value = ffi.wasmtime_val_t()
            ffi.wasmtime_table_get(store.context, table._table, index, value)
            found.append(bytes(value.of.funcref))
    return found
