"""What the host answers to the guest's WASI: seeded, repeatable, and no resource behind any of it.

There is no file, no network, no environment and no real time in here. A question that has a
harmless answer gets it, so that the program sees an exception instead of a dead interpreter;
what is left stops the guest. Handles are numbers without meaning: nothing is kept open.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from rookery.actors.sandbox.contract import GuestEnvironment
from rookery.actors.sandbox.runtime.wasm import GuestStopped

__all__ = ["WasiStore", "host_function_for"]

_ACCESS_DENIED = b"\1\0\0\0\1\0\0\0"  # result<_, error-code>
_CLOSED = b"\1\0\0\0\1\0\0\0\0\0\0\0"  # result<list<u8>, stream-error>
_WRITTEN = bytes(12)  # result<_, stream-error>
_WRITE_BYTES_MAX = 4096
_STDOUT, _STDERR = 1, 2
_HANDLE = 3
_RANDOM_BYTES_MAX = 1 << 20
_HANDLES_MAX = 1024


class WasiStore(Protocol):
    """The machine of a guest, as far as WASI needs it."""

    surroundings: GuestEnvironment

    def read(self, pointer: int, length: int) -> bytes: ...
    def write(self, pointer: int, data: bytes) -> None: ...
    def allocate_bytes(self, data: bytes) -> int:
        """Memory of the guest's own, with ``data`` in it."""

    def emit(self, channel: int, text: bytes) -> bool: ...


def _refuse_more(count: int, most: int) -> None:
    """libc asks for little at a time; who asks for more wants to keep the host busy."""
    if not 0 <= count <= most:
        raise GuestStopped("RUNTIME_ERROR", f"the guest asked its host for {count} at a time")


def _nothing(asker: WasiStore, result: int) -> None:
    asker.write(result, bytes(8))


def _ignored(_asker: WasiStore, *_arguments: int) -> None:
    pass


def _handle(_asker: WasiStore, *_arguments: int) -> int:
    return _HANDLE


def _denied(asker: WasiStore, *arguments: int) -> None:
    asker.write(arguments[-1], _ACCESS_DENIED)


def _random_bytes(asker: WasiStore, count: int, result: int) -> None:
    _refuse_more(count, _RANDOM_BYTES_MAX)
    data = asker.surroundings.random_bytes(count)
    asker.write(result, struct.pack("<II", asker.allocate_bytes(data), len(data)))


def _now(asker: WasiStore) -> int:
    return asker.surroundings.read_clock_ns()


def _wall_clock(asker: WasiStore, result: int) -> None:
    asker.write(result, struct.pack("<QI", *divmod(_now(asker), 10**9)))


def _resolution(_asker: WasiStore) -> int:
    return 1000


def _wall_resolution(asker: WasiStore, result: int) -> None:
    asker.write(result, struct.pack("<QI", 0, 1000))


def _wait_for(asker: WasiStore, duration_ns: int) -> int:
    """Time passes when it is asked for; whoever waits for it afterwards need not."""
    asker.surroundings.advance_clock(duration_ns)
    return _HANDLE


def _poll(asker: WasiStore, _handles: int, count: int, result: int) -> None:
    _refuse_more(count, _HANDLES_MAX)
    ready = struct.pack(f"<{count}I", *range(count))
    asker.write(result, struct.pack("<II", asker.allocate_bytes(ready), count))


def _stdout(_asker: WasiStore) -> int:
    return _STDOUT


def _stderr(_asker: WasiStore) -> int:
    return _STDERR


def _read_nothing(asker: WasiStore, _handle: int, _count: int, result: int) -> None:
    asker.write(result, _CLOSED)


def _may_write(asker: WasiStore, _handle: int, result: int) -> None:
    asker.write(result, struct.pack("<QQ", 0, _WRITE_BYTES_MAX))


def _write(asker: WasiStore, handle: int, data: int, count: int, result: int) -> None:
    asker.emit(handle, asker.read(data, count))
    asker.write(result, _WRITTEN)


def _flush(asker: WasiStore, _handle: int, result: int) -> None:
    asker.write(result, _WRITTEN)


def _exit(_asker: WasiStore, *_arguments: int) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the program ended its interpreter")


_HOST_FUNCTIONS: dict[tuple[str, int], Callable[..., Any]] = {
    ("get-directories", 1): _nothing,
    ("get-arguments", 1): _nothing,
    ("get-environment", 1): _nothing,
    ("get-terminal-stdin", 1): _nothing,
    ("get-terminal-stdout", 1): _nothing,
    ("get-terminal-stderr", 1): _nothing,
    ("get-random-bytes", 2): _random_bytes,
    ("now", 0): _now,
    ("now", 1): _wall_clock,
    ("resolution", 0): _resolution,
    ("resolution", 1): _wall_resolution,
    ("subscribe-duration", 1): _wait_for,
    ("poll", 3): _poll,
    ("[method]pollable.block", 1): _ignored,
    ("get-stdin", 0): _handle,
    ("get-stdout", 0): _stdout,
    ("get-stderr", 0): _stderr,
    ("[method]input-stream.read", 3): _read_nothing,
    ("[method]input-stream.blocking-read", 3): _read_nothing,
    ("[method]output-stream.check-write", 2): _may_write,
    ("[method]output-stream.write", 4): _write,
    ("[method]output-stream.blocking-write-and-flush", 4): _write,
    ("[method]output-stream.blocking-flush", 2): _flush,
    ("[method]input-stream.subscribe", 1): _handle,
    ("[method]output-stream.subscribe", 1): _handle,
    ("instance-network", 0): _handle,
    ("reset_adapter_state", 0): _ignored,
    ("exit", 1): _exit,
}


def host_function_for(name: str, parameters: int) -> Callable[..., Any]:
    """The answer to a WASI function, known by its name and its number of core parameters."""
    if answer := _HOST_FUNCTIONS.get((name, parameters)):
        return answer
    if name.startswith("[resource-drop]"):
        return _ignored
    if name.startswith("create-") or name == "resolve-addresses":
        return _denied

    def stop(_asker: WasiStore, *_arguments: int) -> None:
        raise GuestStopped("UNSUPPORTED_FEATURE", f"the sandbox has no {name}")

    return stop
