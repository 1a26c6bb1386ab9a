"""The host functions of the JavaScript engine: clock, randomness, output, files, tool calls.

All other functions are refused: files, environment, a second interpreter.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, Final

from rookery.actors.sandbox.contract import Pause
from rookery.actors.sandbox.runtime.wasm import GuestStopped

if TYPE_CHECKING:
    from rookery.actors.sandbox.typescript.engine import JavaScriptStore

__all__ = ["HOST_CALLS", "SUSPENDING", "host_calls_of", "host_function_for", "make_host_call"]

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


_FILE_CHANNELS: Final = frozenset(("3", "4"))
_NOT_BASE64 = re.compile("[^A-Za-z0-9+/]")
_HEX = re.compile("(?:[0-9A-Fa-f]{2})*")
_ASCII: Final = bytes(byte & 0x7F for byte in range(256))


def _emit(store: JavaScriptStore, channel: str, text: str) -> int:
    """Send a name or a piece of a file; the text of the reply is empty if the host has enough."""
    if channel not in _FILE_CHANNELS:
        raise GuestStopped("RUNTIME_ERROR", "the guest named an unknown channel")
    return store.text("more" if store.emit(int(channel), text.encode()) else "")


def _from_base64(text: str) -> bytes:
    """Decode as node does: both alphabets, and all else is left out."""
    letters = _NOT_BASE64.sub("", text.partition("=")[0].replace("-", "+").replace("_", "/"))
    letters = letters[: len(letters) - (len(letters) % 4 == 1)]
    return binascii.a2b_base64(letters + "=" * (-len(letters) % 4))


def _from_hex(text: str) -> bytes:
    found = _HEX.match(text)
    return bytes.fromhex(found[0] if found else "")


_ENCODERS: Final[Mapping[str, Callable[[str], bytes]]] = {
    "utf8": str.encode,
    "utf16le": lambda text: text.encode("utf-16-le"),
    "latin1": lambda text: text.encode("utf-16-le")[::2],
    "ascii": lambda text: text.encode("utf-16-le")[::2],
    "base64": _from_base64,
    "base64url": _from_base64,
    "hex": _from_hex,
}
_DECODERS: Final[Mapping[str, Callable[[bytes], str]]] = {
    "utf8": lambda data: data.decode(errors="replace"),
    "utf16le": lambda data: data[: len(data) & ~1].decode("utf-16-le", "replace"),
    "latin1": lambda data: data.decode("latin-1"),
    "ascii": lambda data: data.translate(_ASCII).decode("ascii"),
    "base64": lambda data: base64.b64encode(data).decode(),
    "base64url": lambda data: base64.urlsafe_b64encode(data).decode().rstrip("="),
    "hex": bytes.hex,
}


def _encode(store: JavaScriptStore, encoding: str, text: str) -> int:
    """The bytes of a text. The engine itself would take fifty times as long."""
    if encoding not in _ENCODERS:
        raise GuestStopped("RUNTIME_ERROR", "the guest named an unknown encoding")
    return store.bytes_value(_ENCODERS[encoding](text))


def _decode(store: JavaScriptStore, encoding: str, data: bytes) -> int:
    if encoding not in _DECODERS:
        raise GuestStopped("RUNTIME_ERROR", "the guest named an unknown encoding")
    return store.text(_DECODERS[encoding](data))


HOST_CALLS: Final[Mapping[str, Callable[..., int | Generator[Pause, None, int]]]] = {
    "call": _call,
    "random": _random,
    "sleep": _sleep,
    "stdout": _stdout,
    "stderr": _stderr,
    "part": _part,
    "emit": _emit,
    "encode": _encode,
    "decode": _decode,
}
_ARITIES: Final = {
    "call": 1,
    "random": 0,
    "sleep": 1,
    "stdout": 1,
    "stderr": 1,
    "part": 1,
    "emit": 2,
    "encode": 2,
    "decode": 2,
}
_FIRST_EDITION: Final = {"part": 2, "emit": 3, "encode": 3, "decode": 3}
"""The edition that a host function came with; the others are in every one."""


def host_calls_of(edition: int) -> list[str]:
    """The host functions of a prelude, so that the initial memory of its edition never changes."""
    return [name for name in HOST_CALLS if _FIRST_EDITION.get(name, 1) <= edition]


def make_host_call(
    store: JavaScriptStore, name: int, length: int, _this: int, count: int, arguments: int
) -> Generator[Pause, None, int]:
    """Make a call of the prelude. Its arguments are texts, but for the bytes to decode."""
    function = store.read(name, length).decode(errors="replace")
    if function not in HOST_CALLS or count != _ARITIES[function]:
        raise GuestStopped("RUNTIME_ERROR", "the guest called an unknown host function")
    handles = struct.unpack(f"<{count}i", store.read(arguments, 4 * count))
    if function == "decode":
        return _decode(store, store.read_text(handles[0]), store.read_bytes(handles[1]))
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
