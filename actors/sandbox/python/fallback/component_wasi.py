"""The host functions of WASI for the component: those of ``wasi``, with values instead of bytes.

This module defines every interface that the component imports: wasmtime's own would let a program
wait in the host, beyond all limits. There is no file, network, environment or real time; a function
without a harmless reply stops the guest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import wasmtime
from wasmtime.component import (
    Component,
    ComponentInstanceType,
    FuncType,
    Record,
    ResourceHost,
    ResourceType,
    Variant,
)

from rookery.actors.sandbox.contract import GuestEnvironment
from rookery.actors.sandbox.runtime.wasm import GuestStopped

__all__ = ["ComponentCaller", "Interface", "host_function_for", "resource_type", "wasi_of"]

_WASI = "wasi:"
_RESOLUTION_NS = 1000
_WRITE_BYTES_MAX = 4096
_RANDOM_BYTES_MAX = 1 << 20
_STDIN, _STDOUT, _STDERR = range(3)
_DENIED = "access-denied"
_CLOSED = None
"""The stream error ``closed``."""


class ComponentCaller(Protocol):
    """The part of a guest's instance that WASI needs."""

    environment: GuestEnvironment

    def emit(self, channel: int, text: bytes) -> bool: ...


class Interface(NamedTuple):
    """The imports of the component from one WASI interface."""

    name: str
    resources: tuple[str, ...]
    functions: tuple[str, ...]


def wasi_of(engine: wasmtime.Engine, component: Component) -> tuple[Interface, ...]:
    return tuple(_interfaces(engine, component))


def _interfaces(engine: wasmtime.Engine, component: Component) -> Iterator[Interface]:
    for name, extern in component.type.imports(engine).items():
        wanted = extern.ty
        if name.startswith(_WASI) and isinstance(wanted, ComponentInstanceType):
            items = {item: inner.ty for item, inner in wanted.exports(engine).items()}
            yield Interface(
                name,
                tuple(item for item, kind in items.items() if isinstance(kind, ResourceType)),
                tuple(item for item, kind in items.items() if isinstance(kind, FuncType)),
            )


def resource_type(name: str) -> ResourceType:
    """The resource type of a name; all interfaces share it."""
    return ResourceType.host(_number_of_type(name))


def _number_of_type(name: str) -> int:
    return int.from_bytes(name.encode()[-4:])


def _handle(resource: str, number: int = 0) -> Callable[..., ResourceHost]:
    return lambda *_: ResourceHost.own(number, _number_of_type(resource))


def _value(value: Any) -> Callable[..., Any]:
    return lambda *_: value


def _nothing(*_: Any) -> list[Any]:
    return []


def _wait_until(caller: ComponentCaller, instant_ns: int) -> ResourceHost:
    return _wait_for(caller, instant_ns - caller.environment.clock_ns)


def _wait_for(caller: ComponentCaller, duration_ns: int) -> ResourceHost:
    """Advance the clock when the guest subscribes; a later wait returns at once."""
    caller.environment.advance_clock(duration_ns)
    return ResourceHost.own(0, _number_of_type("pollable"))


def _ready(_caller: ComponentCaller, handles: list[int]) -> list[int]:
    """All handles are ready. wasmtime 50 stops a guest that lends more than one at a time."""
    return list(range(len(handles)))


def _now(caller: ComponentCaller) -> int:
    return caller.environment.read_clock_ns()


def _wall_clock(caller: ComponentCaller) -> Record:
    return _instant(_now(caller))


def _wall_resolution(_caller: ComponentCaller) -> Record:
    return _instant(_RESOLUTION_NS)


def _instant(time_ns: int) -> Record:
    seconds, nanoseconds = divmod(time_ns, 10**9)
    record = Record()
    vars(record).update(seconds=seconds, nanoseconds=nanoseconds)
    return record


def _random_bytes(caller: ComponentCaller, count: int) -> bytes:
    if count > _RANDOM_BYTES_MAX:
        message = f"the guest requested {count} at a time; the limit is {_RANDOM_BYTES_MAX}"
        raise GuestStopped("RUNTIME_ERROR", message)
    return caller.environment.random_bytes(count)


def _write(caller: ComponentCaller, stream: int, contents: bytes) -> Variant:
    caller.emit(stream, contents)
    return Variant("ok")


def _exit(*_: Any) -> None:
    raise GuestStopped("RUNTIME_ERROR", "the program ended its interpreter")


_HOST_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "io/poll.poll": _ready,
    "io/poll.[method]pollable.block": _value(None),
    "io/streams.[method]input-stream.read": _value(_CLOSED),
    "io/streams.[method]input-stream.subscribe": _handle("pollable"),
    "io/streams.[method]output-stream.check-write": _value(_WRITE_BYTES_MAX),
    "io/streams.[method]output-stream.write": _write,
    "io/streams.[method]output-stream.blocking-write-and-flush": _write,
    "io/streams.[method]output-stream.blocking-flush": _value(Variant("ok")),
    "io/streams.[method]output-stream.subscribe": _handle("pollable"),
    "clocks/monotonic-clock.now": _now,
    "clocks/monotonic-clock.resolution": _value(_RESOLUTION_NS),
    "clocks/monotonic-clock.subscribe-instant": _wait_until,
    "clocks/monotonic-clock.subscribe-duration": _wait_for,
    "clocks/wall-clock.now": _wall_clock,
    "clocks/wall-clock.resolution": _wall_resolution,
    "random/random.get-random-bytes": _random_bytes,
    "cli/environment.get-environment": _nothing,
    "cli/environment.get-arguments": _nothing,
    "cli/exit.exit": _exit,
    "cli/stdin.get-stdin": _handle("input-stream", _STDIN),
    "cli/stdout.get-stdout": _handle("output-stream", _STDOUT),
    "cli/stderr.get-stderr": _handle("output-stream", _STDERR),
    "cli/terminal-stdin.get-terminal-stdin": _value(None),
    "cli/terminal-stdout.get-terminal-stdout": _value(None),
    "cli/terminal-stderr.get-terminal-stderr": _value(None),
    "filesystem/preopens.get-directories": _nothing,
    "sockets/instance-network.instance-network": _handle("network"),
    "sockets/tcp-create-socket.create-tcp-socket": _value(_DENIED),
    "sockets/udp-create-socket.create-udp-socket": _value(_DENIED),
    "sockets/ip-name-lookup.resolve-addresses": _value(_DENIED),
}


def host_function_for(interface: str, name: str) -> Callable[..., Any]:
    """The host function for a function of an interface, of any version. Handles are numbers."""
    path = interface.removeprefix(_WASI).partition("@")[0]
    if function := _HOST_FUNCTIONS.get(f"{path}.{name}"):
        return function

    def stop(*_: Any) -> None:
        raise GuestStopped("UNSUPPORTED_FEATURE", f"the sandbox has no {name}")

    return stop
