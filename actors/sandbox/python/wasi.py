"""The host functions of WASI for the guest: seeded, repeatable and without resources of the host.

There is no file, network, environment or real time. A function with a harmless reply returns it, so
that the program gets an exception instead of a trap; all others stop the guest. Handles are numbers
without meaning.
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
    """The part of a guest's store that WASI needs."""

    environment: GuestEnvironment

    def read(self, pointer: int, length: int) -> bytes: ...
    def write(self, pointer: int, data: bytes) -> None: ...
    def allocate_bytes(self, data: bytes) -> int:
        """Allocate memory in the guest and write ``data`` to it."""

    def emit(self, channel: int, text: bytes) -> bool: ...


def _refuse_more(count: int, most: int) -> None:
    """Refuse requests larger than those of libc: they only burden the host."""
    if not 0 <= count <= most:
        message = f"the guest requested {count} at a time; the limit is {most}"
        raise GuestStopped("RUNTIME_ERROR", message)


def _nothing(store: WasiStore, result: int) -> None:
    store.write(result, bytes(8))


def _ignored(_store: WasiStore, *_arguments: int) -> None:
    pass


def _handle(_store: WasiStore, *_arguments: int) -> int:
    return _HANDLE


def _denied(store: WasiStore, *arguments: int) -> None:
    store.write(arguments[-1], _ACCESS_DENIED)


def _random_bytes(store: WasiStore, count: int, result: int) -> None:
    _refuse_more(count, _RANDOM_BYTES_MAX)
    data = store.environment.random_bytes(count)
    store.write(result, struct.pack("<II", store.allocate_bytes(data), len(data)))


def _now(store: WasiStore) -> int:
    return store.environment.read_clock_ns()


def _wall_clock(store: WasiStore, result: int) -> None:
    store.write(result, struct.pack("<QI", *divmod(_now(store), 10**9)))


def _resolution(_store: WasiStore) -> int:
    return 1000


def _wall_resolution(store: WasiStore, result: int) -> None:
    store.write(result, struct.pack("<QI", 0, 1000))


def _wait_for(store: WasiStore, duration_ns: int) -> int:
    """Advance the clock when the guest subscribes; a later wait returns at once."""
    store.environment.advance_clock(duration_ns)
    return _HANDLE


def _poll(store: WasiStore, _handles: int, count: int, result: int) -> None:
    _refuse_more(count, _HANDLES_MAX)
    ready = struct.pack(f"<{count}I", *range(count))
    store.write(result, struct.pack("<II", store.allocate_bytes(ready), count))


def _stdout(_store: WasiStore) -> int:
    return _STDOUT


def _stderr(_store: WasiStore) -> int:
    return _STDERR


def _read_nothing(store: WasiStore, _handle: int, _count: int, result: int) -> None:
    store.write(result, _CLOSED)


def _may_write(store: WasiStore, _handle: int, result: int) -> None:
    store.write(result, struct.pack("<QQ", 0, _WRITE_BYTES_MAX))


def _write(store: WasiStore, handle: int, data: int, count: int, result: int) -> None:
    store.emit(handle, store.read(data, count))
    store.write(result, _WRITTEN)


def _flush(store: WasiStore, _handle: int, result: int) -> None:
    store.write(result, _WRITTEN)


def _exit(_store: WasiStore, *_arguments: int) -> None:
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
    """The host function for a WASI function of this name and number of core parameters."""
    if function := _HOST_FUNCTIONS.get((name, parameters)):
        return function
    if name.startswith("[resource-drop]"):
        return _ignored
    if name.startswith("create-") or name == "resolve-addresses":
        return _denied

    def stop(_store: WasiStore, *_arguments: int) -> None:
        raise GuestStopped("UNSUPPORTED_FEATURE", f"the sandbox has no {name}")

    return stop
