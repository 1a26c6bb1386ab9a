"""The host functions of the JavaScript engine: clock, randomness, output, tool calls.

All other functions are refused: files, environment, a second interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from rookery.actors.sandbox.contract import Pause
from rookery.actors.sandbox.runtime.wasm import GuestStopped

if TYPE_CHECKING:
    from rookery.actors.sandbox.typescript.engine import JavaScriptStore

__all__ = ["HOST_CALLS", "SUSPENDING", "host_function_for", "make_host_call"]

SUSPENDING = "host_call"
"""The host function that may suspend the guest."""
_BAD_DESCRIPTOR = 8
_RANDOM_BYTES_MAX = 1 << 20


def _call(store: JavaScriptStore, request: str) -> Generator[Pause, None, int]:
    name, _, arguments = request.partition(" ")
    reply = yield from store.host.call(name, arguments.encode())
    return store.text(reply.decode())


def _random(store: JavaScriptStore) -> int:
    words = struct.unpack("<4I", store.environment.random_bytes(16))
    return store.text(str(list(words)))


def _sleep(store: JavaScriptStore, duration_ms: str) -> int:
    """Advance the clock. A hostile program may pass any text."""
    try:
        duration_ns = int(float(duration_ms) * 1e6)
    except (ValueError, OverflowError):
        raise GuestStopped("RUNTIME_ERROR", "the guest passed an invalid duration") from None
    store.environment.advance_clock(duration_ns + 1)
    return store.text("")


def _part(store: JavaScriptStore, name: str) -> int:
    if (source := store.parts.get(name)) is None:
        raise GuestStopped("RUNTIME_ERROR", "the guest requested an unknown part of the prelude")
    return store.text(source)


def _stdout(store: JavaScriptStore, text: str) -> int:
    store.emit(1, f"{text}\n".encode())
    return store.text("")


def _stderr(store: JavaScriptStore, text: str) -> int:
    store.emit(2, f"{text}\n".encode())
    return store.text("")


HOST_CALLS: Mapping[str, Callable[..., int | Generator[Pause, None, int]]] = {
    "call": _call,
    "random": _random,
    "sleep": _sleep,
    "stdout": _stdout,
    "stderr": _stderr,
    "part": _part,
}
_ARITIES = {"call": 1, "random": 0, "sleep": 1, "stdout": 1, "stderr": 1, "part": 1}


def make_host_call(
    store: JavaScriptStore, name: int, length: int, _this: int, count: int, arguments: int
) -> Generator[Pause, None, int]:
    """Make a call of the prelude."""
    function = store.read(name, length).decode(errors="replace")
    if function not in HOST_CALLS or count != _ARITIES[function]:
        raise GuestStopped("RUNTIME_ERROR", "the guest called an unknown host function")
    handles = struct.unpack(f"<{count}i", store.read(arguments, 4 * count))
    reply = HOST_CALLS[function](store, *(store.read_text(handle) for handle in handles))
    return reply if isinstance(reply, int) else (yield from reply)


def _clock(store: JavaScriptStore, _clock: int, _precision: int, result: int) -> int:
    store.write(result, struct.pack("<Q", store.environment.read_clock_ns()))
    return 0


def _random_get(store: JavaScriptStore, pointer: int, count: int) -> int:
    if not 0 <= count <= _RANDOM_BYTES_MAX:
        message = f"the guest requested {count} random bytes; the limit is {_RANDOM_BYTES_MAX}"
        raise GuestStopped("RUNTIME_ERROR", message)
    store.write(pointer, store.environment.random_bytes(count))
    return 0


def _no_environment(store: JavaScriptStore, count: int, size: int) -> int:
    store.write(count, bytes(4))
    store.write(size, bytes(4))
    return 0


def _exit(_store: JavaScriptStore, _code: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the program ended its interpreter")


_HOST_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "clock_time_get": _clock,
    "random_get": _random_get,
    "environ_sizes_get": _no_environment,
    "proc_exit": _exit,
}


def host_function_for(name: str) -> Callable[..., Any]:
    """The host function of this name. By default ``fd_*`` fail, and others return 0."""
    if found := _HOST_FUNCTIONS.get(name):
        return found
    refusal = _BAD_DESCRIPTOR if name.startswith("fd_") else 0
    return lambda _store, *_arguments: refusal
