"""What the JavaScript engine may ask of its host: a clock, randomness, output, tool calls.

Owns the answers, and refuses whatever else is asked: files, an environment, a second interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rookery.actors.sandbox.runtime.wasm import GuestStopped

if TYPE_CHECKING:
    from rookery.actors.sandbox.typescript.engine import JavaScriptStore

__all__ = ["HOST_CALLS", "host_function_for"]

_BAD_DESCRIPTOR = 8
_RANDOM_BYTES_MAX = 1 << 20


def _call(machine: JavaScriptStore, asked: str) -> int:
    name, _, arguments = asked.partition(" ")
    return machine.text(machine.host.call(name, arguments.encode()).decode())


def _random(machine: JavaScriptStore) -> int:
    words = struct.unpack("<4I", machine.surroundings.random_bytes(16))
    return machine.text(str(list(words)))


def _sleep(machine: JavaScriptStore, duration_ms: str) -> int:
    """The prelude says it; a program that found the way here may say anything."""
    try:
        duration_ns = int(float(duration_ms) * 1e6)
    except (ValueError, OverflowError):
        raise GuestStopped("RUNTIME_ERROR", "the guest slept for no time there is") from None
    machine.surroundings.advance_clock(duration_ns + 1)
    return machine.text("")


def _part(machine: JavaScriptStore, name: str) -> int:
    if (source := machine.parts.get(name)) is None:
        raise GuestStopped("RUNTIME_ERROR", "the guest asked its host for a part there is not")
    return machine.text(source)


def _stdout(machine: JavaScriptStore, text: str) -> int:
    machine.emit(1, f"{text}\n".encode())
    return machine.text("")


def _stderr(machine: JavaScriptStore, text: str) -> int:
    machine.emit(2, f"{text}\n".encode())
    return machine.text("")


HOST_CALLS: Mapping[str, Callable[..., int]] = {
    "call": _call,
    "random": _random,
    "sleep": _sleep,
    "stdout": _stdout,
    "stderr": _stderr,
    "part": _part,
}
_ARITIES = {"call": 1, "random": 0, "sleep": 1, "stdout": 1, "stderr": 1, "part": 1}


def _host_call(
    machine: JavaScriptStore, name: int, length: int, _this: int, count: int, arguments: int
) -> int:
    asked = machine.read(name, length).decode(errors="replace")
    if asked not in HOST_CALLS or count != _ARITIES[asked]:
        raise GuestStopped("RUNTIME_ERROR", "the guest asked its host for something unknown")
    handles = struct.unpack(f"<{count}i", machine.read(arguments, 4 * count))
    return HOST_CALLS[asked](machine, *(machine.read_text(handle) for handle in handles))


def _clock(machine: JavaScriptStore, _clock: int, _precision: int, result: int) -> int:
    machine.write(result, struct.pack("<Q", machine.surroundings.read_clock_ns()))
    return 0


def _random_get(machine: JavaScriptStore, pointer: int, count: int) -> int:
    if not 0 <= count <= _RANDOM_BYTES_MAX:
        raise GuestStopped("RUNTIME_ERROR", f"the guest asked for {count} random bytes")
    machine.write(pointer, machine.surroundings.random_bytes(count))
    return 0


def _no_environment(machine: JavaScriptStore, count: int, size: int) -> int:
    machine.write(count, bytes(4))
    machine.write(size, bytes(4))
    return 0


def _exit(_machine: JavaScriptStore, _code: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the program ended its interpreter")


_HOST_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "host_call": _host_call,
    "clock_time_get": _clock,
    "random_get": _random_get,
    "environ_sizes_get": _no_environment,
    "proc_exit": _exit,
}


def host_function_for(name: str) -> Callable[..., Any]:
    """Descriptors do not exist; modules are not found; nobody interrupts this way."""
    if answer := _HOST_FUNCTIONS.get(name):
        return answer
    refusal = _BAD_DESCRIPTOR if name.startswith("fd_") else 0
    return lambda _machine, *_arguments: refusal
