"""Reads how the core modules of a component binary are linked.

It reads the part of the binary format that componentize-py 0.25 uses and refuses everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from rookery.schemas.errors import Failed

__all__ = [
    "CoreExport",
    "ExportBag",
    "Layout",
    "Lift",
    "Lowered",
    "ModuleFacts",
    "ModuleInstance",
    "Resource",
    "read_layout",
    "read_module",
]

T = TypeVar("T")

_SORTS = {0: "func", 1: "table", 2: "memory", 3: "global", 0x10: "type", 0x11: "module"}
_SORTS[0x12] = "instance"
_OPTIONS = {3: "memory", 4: "realloc", 5: "post_return"}
_OPTIONS_WITHOUT_INDEX = 2
_INSTANCE = 0x12


class CoreExport(NamedTuple):
    """An export of a core instance."""

    instance: int
    name: str


class Lowered(NamedTuple):
    """An import of the component, lowered for its modules."""

    name: str


class Resource(NamedTuple):
    """A function on resources; a guest that uses no resources never calls it."""

    kind: int


class ModuleInstance(NamedTuple):
    """A core module, instantiated with other instances by import name."""

    module: int
    imports: dict[str, int]


class ExportBag(NamedTuple):
    """An instance made of existing items: name to (sort, index)."""

    exports: dict[str, tuple[str, int]]


class Lift(NamedTuple):
    """An export of the component: a core function and the indices of its canonical options."""

    function: int
    options: dict[str, int]


CoreItem = CoreExport | Lowered | Resource


@dataclass
class Layout:
    """A component's index spaces, in the order of its binary."""

    pieces: list[memoryview] = field(default_factory=list)
    """The core modules, as parts of the component."""
    instances: list[ModuleInstance | ExportBag] = field(default_factory=list)
    core: dict[str, list[CoreItem]] = field(
        default_factory=lambda: {"func": [], "table": [], "memory": [], "global": []}
    )
    functions: list[str] = field(default_factory=list)
    lifts: list[Lift] = field(default_factory=list)

    @property
    def modules(self) -> list[bytes]:
        """Copies of the core modules."""
        return [bytes(piece) for piece in self.pieces]

    def resolve(self, instance: int, name: str) -> CoreExport | Lowered:
        """Resolve aliases to a module's export or to an import of the component."""
        entry = self.instances[instance]
        if isinstance(entry, ExportBag):
            return self.resolve_item(*entry.exports[name])
        return CoreExport(instance, name)

    def resolve_item(self, sort: str, index: int) -> CoreExport | Lowered:
        """Resolve an item of the component to the same."""
        item = self.core[sort][index]
        if isinstance(item, Lowered):
            return item
        if isinstance(item, CoreExport):
            return self.resolve(item.instance, item.name)
        raise Failed("GUEST_BUILD_FAILED", "the guest uses resources, which cannot be linked")


class ModuleFacts(NamedTuple):
    """The properties of a core module that linking needs."""

    imports: tuple[tuple[str, str], ...]
    owns_memory_or_table: bool
    hidden_mutable_globals: int
    """Mutable globals that are not exported, so that snapshots cannot include them."""
    mutable_globals: tuple[str, ...]
    tables: tuple[str, ...]
    """The names under which tables are exported."""


class BinaryReader:
    """Reads LEB128 numbers and names from bytes."""

    def __init__(self, data: bytes | memoryview, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def u32(self) -> int:
        result = shift = 0
        while True:
            byte = self.byte()
            result |= (byte & 127) << shift
            if not byte & 128:
                return result
            shift += 7

    def name(self) -> str:
        length = self.u32()
        self.at += length
        return str(self.data[self.at - length : self.at], "utf-8")

    def expect(self, value: int) -> None:
        if self.byte() != value:
            raise _unknown(f"byte {self.data[self.at - 1]:#x} at {self.at - 1}")

    def many(self, read: Callable[[], T]) -> list[T]:
        return [read() for _ in range(self.u32())]

    def sections(self) -> Iterator[tuple[int, BinaryReader]]:
        while self.at < self.end:
            kind, size = self.byte(), self.u32()
            yield kind, BinaryReader(self.data, self.at, self.at + size)
            self.at += size


def read_layout(component: bytes) -> Layout:
    """The layout of a whole component binary."""
    layout = Layout()
    whole = memoryview(component)
    for kind, reader in BinaryReader(whole, 8).sections():
        if kind == 1:
            layout.pieces.append(whole[reader.at : reader.end])
        elif read := _SECTIONS.get(kind):
            for _ in range(reader.u32()):
                read(layout, reader)
    return layout


def _core_instance(layout: Layout, reader: BinaryReader) -> None:
    if reader.byte() == 0:
        module = reader.u32()
        imports = {}
        for _ in range(reader.u32()):
            name = reader.name()
            reader.expect(_INSTANCE)
            imports[name] = reader.u32()
        layout.instances.append(ModuleInstance(module, imports))
        return
    exports = {}
    for _ in range(reader.u32()):
        name = reader.name()
        exports[name] = (_SORTS[reader.byte()], reader.u32())
    layout.instances.append(ExportBag(exports))


def _alias(layout: Layout, reader: BinaryReader) -> None:
    sort = reader.byte()
    core_sort = _SORTS[reader.byte()] if sort == 0 else ""
    target, first = reader.byte(), reader.u32()
    if target == 2:  # An outer alias: types only.
        reader.u32()
        return
    name = reader.name()
    if target == 1:
        layout.core[core_sort].append(CoreExport(first, name))
    elif sort == 1:
        layout.functions.append(name)


def _canonical(layout: Layout, reader: BinaryReader) -> None:
    kind = reader.byte()
    if kind == 0:
        reader.expect(0)
        function, options = reader.u32(), _options(reader)
        reader.u32()
        layout.lifts.append(Lift(function, options))
        layout.functions.append("")
    elif kind == 1:
        reader.expect(0)
        name = layout.functions[reader.u32()]
        _options(reader)
        layout.core["func"].append(Lowered(name))
    elif kind in (2, 3, 4):
        layout.core["func"].append(Resource(kind))
        reader.u32()
    else:
        raise _unknown(f"canonical function {kind}")


def _options(reader: BinaryReader) -> dict[str, int]:
    found = {}
    for _ in range(reader.u32()):
        kind = reader.byte()
        if kind in _OPTIONS:
            found[_OPTIONS[kind]] = reader.u32()
        elif kind > _OPTIONS_WITHOUT_INDEX:
            raise _unknown(f"canonical option {kind}")
    return found


def _import(layout: Layout, reader: BinaryReader) -> None:
    reader.byte()
    name, sort = reader.name(), reader.byte()
    if sort == 1:
        reader.u32()
        layout.functions.append(name)
    elif sort == 3:
        if reader.byte() == 0:
            reader.u32()
    elif sort == 5:
        reader.u32()
    else:
        raise _unknown(f"an import of sort {sort}")


_SECTIONS = {2: _core_instance, 6: _alias, 8: _canonical, 10: _import}


def read_module(module: bytes | memoryview) -> ModuleFacts:
    """Read the properties of a core module."""
    imports: list[tuple[str, str, int]] = []
    mutable: list[bool] = []
    exports: list[tuple[str, int, int]] = []
    owns = False
    for kind, reader in BinaryReader(module, 8).sections():
        if kind == 2:
            imports += reader.many(lambda r=reader: _module_import(r))  # type: ignore[misc]
        elif kind == 6:
            mutable += reader.many(lambda r=reader: _module_global(r))  # type: ignore[misc]
        elif kind == 7:
            exports += _exports(reader)
        elif kind in (4, 5):
            owns = True
    shift = sum(sort == 3 for _, _, sort in imports)
    named = {index - shift: name for name, sort, index in exports if sort == 3 and index >= shift}
    changing = [index for index, own in enumerate(mutable) if own]
    return ModuleFacts(
        imports=tuple((module, name) for module, name, _ in imports),
        owns_memory_or_table=owns,
        hidden_mutable_globals=sum(index not in named for index in changing),
        mutable_globals=tuple(named[index] for index in changing if index in named),
        tables=tuple(name for name, sort, _ in exports if sort == 1),
    )


def _module_import(reader: BinaryReader) -> tuple[str, str, int]:
    module, name, sort = reader.name(), reader.name(), reader.byte()
    if sort == 0:
        reader.u32()
    elif sort == 1:
        reader.byte()
        _limits(reader)
    elif sort == 2:
        _limits(reader)
    elif sort == 3:
        reader.at += 2
    else:
        raise _unknown(f"a module import of sort {sort}")
    return module, name, sort


def _limits(reader: BinaryReader) -> None:
    flags = reader.byte()
    reader.u32()
    if flags & 1:
        reader.u32()


def _module_global(reader: BinaryReader) -> bool:
    reader.byte()
    mutable = reader.byte() == 1
    while (opcode := reader.byte()) != 0x0B:  # A constant expression.
        if opcode in (0x41, 0x42, 0x23, 0xD2):
            reader.u32()
        elif opcode in (0x43, 0x44):
            reader.at += 4 if opcode == 0x43 else 8
        elif opcode == 0xD0:
            reader.byte()
        elif opcode not in (0x6A, 0x6B, 0x7C, 0x7D):
            raise _unknown(f"opcode {opcode:#x} in a constant expression")
    return mutable


def _exports(reader: BinaryReader) -> Iterator[tuple[str, int, int]]:
    for _ in range(reader.u32()):
        yield reader.name(), reader.byte(), reader.u32()


def _unknown(what: str) -> Failed:
    return Failed(
        "GUEST_BUILD_FAILED", f"the component has a layout this version cannot read: {what}"
    )
