"""Interpreters that are their linear memory: what the guests of such have in common.

The memory can be taken out as an image, and laid over another instance of the same build. What a
step is, and how the program gets in and out, is the guest's.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import wasmtime

from rookery.actors.sandbox.contract import GuestEnvironment, Image
from rookery.actors.sandbox.runtime.memory_image import Pristine, apply_pages, dirty_pages
from rookery.actors.sandbox.runtime.wasm import WasmStore

__all__ = ["GuestStore", "ImageInstance"]


class GuestStore(WasmStore):
    """One that sees a clock and chance of its own."""

    def __init__(self, engine: wasmtime.Engine, memory_bytes_max: int) -> None:
        super().__init__(engine, memory_bytes_max)
        self.surroundings = GuestEnvironment()


M = TypeVar("M", bound=GuestStore)
M_co = TypeVar("M_co", bound=GuestStore, covariant=True)


class ImageGuest(Protocol[M_co]):
    @property
    def pristine(self) -> Pristine:
        """The memory every instance begins with."""

    def new_store(self) -> M_co: ...


class ImageInstance(Generic[M]):
    """One interpreter of a build."""

    def __init__(self, guest: ImageGuest[M]) -> None:
        self._guest = guest  # Its host functions are there as long as this may call them.
        self._wasm_store = guest.new_store()
        self.fuel_used = 0

    @property
    def surroundings(self) -> GuestEnvironment:
        return self._wasm_store.surroundings

    @surroundings.setter
    def surroundings(self, value: GuestEnvironment) -> None:
        self._wasm_store.surroundings = value

    @property
    def memory_bytes(self) -> int:
        return self._wasm_store.size

    def limit_memory(self, size_bytes: int) -> None:
        self._wasm_store.limit_memory(size_bytes)

    def image(self) -> Image:
        memory = dirty_pages(self._wasm_store, self._guest.pristine)
        return Image(memory, self.surroundings.copy())

    def load(self, image: Image) -> None:
        apply_pages(self._wasm_store, image.memory)
        self.surroundings = image.surroundings.copy()

    def close(self) -> None:
        self._wasm_store.close()
