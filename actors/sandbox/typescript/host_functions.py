"""What the JavaScript engine may ask of its host: a clock, randomness, output, tool calls.

Owns the answers, and refuses whatever else is asked: files, an environment, a second interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rookery.actors.sandbox.runtime.wasm import GuestStopped

if TYPE_CHECKING:
    from rookery.actors.sandbox.typescript.engine import JavaScriptMachine

__all__ = ["ASKED", "answer_to"]

_BAD_DESCRIPTOR = 8
_RANDOM_BYTES_MAX = 1 << 20


def _call(machine: JavaScriptMachine, asked: str) -> int:
    name, _, arguments = asked.partition(" ")
    return machine.text(machine.host.call(name, arguments.encode()).decode())


def _random(machine: JavaScriptMachine) -> int:
    words = struct.unpack("<4I", machine.surroundings.random_bytes(16))
    return machine.text(str(list(words)))


def _sleep(machine: JavaScriptMachine, duration_ms: str) -> int:
    """The prelude says it; a program that found the way here may say anything."""
    try:
        duration_ns = int(float(duration_ms) * 1e6)
    except (ValueError, OverflowError):
        raise GuestStopped("RUNTIME_ERROR", "the guest slept for no time there is") from None
    machine.surroundings.pass_time(duration_ns + 1)
    return machine.text("")


def _part(machine: JavaScriptMachine, name: str) -> int:
    if (source := machine.parts.get(name)) is None:
        raise GuestStopped("RUNTIME_ERROR", "the guest asked its host for a part there is not")
    return machine.text(source)


def _stdout(machine: JavaScriptMachine, text: str) -> int:
    machine.emitted(1, f"{text}\n".encode())
    return machine.text("")


def _stderr(machine: JavaScriptMachine, text: str) -> int:
    machine.emitted(2, f"{text}\n".encode())
    return machine.text("")


ASKED: Mapping[str, Callable[..., int]] = {
    "call": _call,
    "random": _random,
    "sleep": _sleep,
    "stdout": _stdout,
    "stderr": _stderr,
    "part": _part,
}
_ARITIES = {"call": 1, "random": 0, "sleep": 1, "stdout": 1, "stderr": 1, "part": 1}


def _host_call(
    machine: JavaScriptMachine, name: int, length: int, _this: int, count: int, arguments: int
) -> int:
    asked = machine.read(name, length).decode(errors="replace")
    if asked not in ASKED or count != _ARITIES[asked]:
        raise GuestStopped("RUNTIME_ERROR", "the guest asked its host for something unknown")
    handles = struct.unpack(f"<{count}i", machine.read(arguments, 4 * count))
    return ASKED[asked](machine, *(machine.read_text(handle) for handle in handles))


def _clock(machine: JavaScriptMachine, _clock: int, _precision: int, result: int) -> int:
    machine.write(result, struct.pack("<Q", machine.surroundings.read_clock_ns()))
    return 0


def _random_get(machine: JavaScriptMachine, pointer: int, count: int) -> int:
    if not 0 <= count <= _RANDOM_BYTES_MAX:
        raise GuestStopped("RUNTIME_ERROR", f"the guest asked for {count} random bytes")
    machine.write(pointer, machine.surroundings.random_bytes(count))
    return 0


def _no_environment(machine: JavaScriptMachine, count: int, size: int) -> int:
    machine.write(count, bytes(4))
    machine.write(size, bytes(4))
    return 0


def _exit(_machine: JavaScriptMachine, _code: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the program ended its interpreter")


_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "host_call": _host_call,
    "clock_time_get": _clock,
    "random_get": _random_get,
    "environ_sizes_get": _no_environment,
    "proc_exit": _exit,
}


def answer_to(name: str) -> Callable[..., Any]:
    """Descriptors do not exist; modules are not found; nobody interrupts this way."""
    if answer := _ANSWERS.get(name):
        return answer
    refusal = _BAD_DESCRIPTOR if name.startswith("fd_") else 0
    return lambda _machine, *_arguments: refusal
