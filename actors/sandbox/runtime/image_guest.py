"""Instances whose whole state is their linear memory.

The memory can be saved as an image and loaded into another instance of the same build. Subclasses
implement the steps.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from rookery.actors.sandbox.contract import GuestEnvironment, Image, MemoryCopy
from rookery.actors.sandbox.runtime.memory_image import (
    Pristine,
    apply_pages,
    compressed,
    dirty_pages,
)
from rookery.actors.sandbox.runtime.wasm import Engine, WasmStore

__all__ = ["GuestStore", "ImageInstance"]


_TOUCHED_BYTES = 2 << 20
"""Memory that most programs touch of a new instance, with its stack."""


class GuestStore(WasmStore):
    """A store with its own clock and randomness."""

    def __init__(self, engine: Engine, memory_bytes_max: int) -> None:
        super().__init__(engine, memory_bytes_max)
        self.environment = GuestEnvironment()


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

    def limit_memory(self, size_bytes: int) -> None:
        self._wasm_store.limit_memory(size_bytes)

    def copy_memory(self) -> MemoryCopy:
        pages = dirty_pages(self._wasm_store, self._guest.pristine)
        environment = self.environment.copy()
        return lambda: Image(compressed(pages), environment)

    def load(self, image: Image) -> None:
        apply_pages(self._wasm_store, image.memory)
        self.environment = image.surroundings.copy()

    def close(self) -> None:
        self._wasm_store.close()
