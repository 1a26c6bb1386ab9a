"""Instances of guests: memory images, the threads that run them, and the pool of warm ones."""

from rookery.actors.sandbox.runtime.factory import open_python_guest, open_sandbox
from rookery.actors.sandbox.runtime.fibers import obstacle as fiber_obstacle
from rookery.actors.sandbox.runtime.wasm import Engine, make_engine

__all__ = [
    "Engine",
    "fiber_obstacle",
    "make_engine",
    "open_python_guest",
    "open_sandbox",
]
