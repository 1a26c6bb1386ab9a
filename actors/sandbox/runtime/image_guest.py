"""Interpreters that are their linear memory: what the guests of such have in common.

The memory can be taken out as an image, and laid over another instance of the same build. What a
step is, and how the program gets in and out, is the guest's.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

import wasmtime

from rookery.actors.sandbox.contract import Image, Surroundings
from rookery.actors.sandbox.runtime.memory_image import Pristine, apply_pages, dirty_pages
from rookery.actors.sandbox.runtime.wasm import Machine

__all__ = ["GuestMachine", "ImagedInstance"]


class GuestMachine(Machine):
    """One that sees a clock and chance of its own."""

    def __init__(self, engine: wasmtime.Engine, memory_bytes_max: int) -> None:
        super().__init__(engine, memory_bytes_max)
        self.surroundings = Surroundings()


M = TypeVar("M", bound=GuestMachine)
M_co = TypeVar("M_co", bound=GuestMachine, covariant=True)


class ImagedGuest(Protocol[M_co]):
    @property
    def pristine(self) -> Pristine:
        """The memory every instance begins with."""

    def machine(self) -> M_co: ...


class ImagedInstance(Generic[M]):
    """One interpreter of a build."""

    def __init__(self, guest: ImagedGuest[M]) -> None:
        self._guest = guest  # Its host functions are there as long as this may call them.
        self._machine = guest.machine()
        self.fuel_used = 0

    @property
    def surroundings(self) -> Surroundings:
        return self._machine.surroundings

    @surroundings.setter
    def surroundings(self, value: Surroundings) -> None:
        self._machine.surroundings = value

    @property
    def memory_bytes(self) -> int:
        return self._machine.size

    def limit_memory(self, size_bytes: int) -> None:
        self._machine.limit_memory(size_bytes)

    def image(self) -> Image:
        memory = dirty_pages(self._machine, self._guest.pristine)
        return Image(memory, self.surroundings.copy())

    def load(self, image: Image) -> None:
        apply_pages(self._machine, image.memory)
        self.surroundings = image.surroundings.copy()

    def close(self) -> None:
        self._machine.close()
