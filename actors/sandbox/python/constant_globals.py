"""Replaces globals of the Python guest's modules that never change by their values.

The modules were shared libraries. Each reads the addresses of data and functions, also of its own,
from globals that one module sets when the libraries are first linked. A build is stored after that,
so these globals have their final values, and that module never runs again. A read of such a global
becomes a constant; its import is removed, which makes new instances faster. No global is left that
could change unnoticed: a module that sets one of them is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final, NamedTuple

from rookery.actors.sandbox.python.component_layout import (
    CoreExport,
    Layout,
    ModuleInstance,
    read_layout,
)
from rookery.actors.sandbox.python.function_inliner import instructions_in
from rookery.actors.sandbox.python.module_format import (
    CODE,
    CORE_MODULE,
    DATA,
    ELEMENTS,
    EXPORTS,
    FUNCTION,
    GLOBAL,
    GLOBALS,
    HEADER_BYTES,
    IMPORTS,
    START,
    Import,
    bodies_in,
    component_sections,
    encode_number,
    encode_sections,
    encode_signed,
    imports_in,
    read_number,
    read_sections,
    read_signed,
    unexpected,
)

__all__ = ["replace_constant_globals"]

_SET_BY_LINKER: Final = ("GOT.mem", "GOT.func")
"""The modules of imported globals that only the linker of the libraries sets."""
_END, _GLOBAL_GET, _GLOBAL_SET, _I32_CONST, _I32_ADD = 0x0B, 0x23, 0x24, 0x41, 0x6A
_I32, _MUTABLE = 0x7F, 1
_UNREACHABLE_BODY: Final = b"\x00\x00\x0b"
_ACTIVE, _ACTIVE_IN_TABLE = 0, 2
"""Kinds of element segments: with an offset, and with a table and an offset."""


_Source = tuple[int, int]
"""Where an imported global is from: a module and the number of its own global."""


class _Global(NamedTuple):
    kind: int
    mutable: bool
    start: bytes
    """The expression of its first value."""


class _LinkedModule:
    """The parts of a module that decide which of its globals are constants."""

    def __init__(self, module: bytes) -> None:
        self.sections = dict(read_sections(module))
        self.imports = imports_in(self.sections.get(IMPORTS, b"\0"))
        self.imported = [one for one in self.imports if one.kind == GLOBAL]
        self.own = list(_globals_in(self.sections.get(GLOBALS, b"\0")))
        self.exports = list(_exports_in(self.sections.get(EXPORTS, b"\0")))
        self.segments = list(_segments_in(self.sections.get(ELEMENTS, b"\0")))

    def exported(self, name: str) -> int | None:
        """The number of its own global of this name, if it exports one."""
        for found, kind, number in self.exports:
            if found == name and kind == GLOBAL and number >= len(self.imported):
                return number - len(self.imported)
        return None

    @property
    def never_runs(self) -> bool:
        """Whether nothing can call its functions: it only fills tables."""
        first = sum(one.kind == FUNCTION for one in self.imports)
        listed = (number for segment in self.segments for number in segment.functions)
        return not self.exports and START not in self.sections and all(n < first for n in listed)


def replace_constant_globals(component: bytes) -> bytes:
    """The component with its core modules changed."""
    layout = read_layout(component)
    modules = [_LinkedModule(module) for module in layout.modules]
    sources = _sources(layout, modules)
    values: list[dict[int, int]] = []
    for module, found in zip(modules, sources, strict=True):
        values.append(_values(module, found, modules, values))
    sealed = _sealed(modules, sources, values)
    written = [component[:HEADER_BYTES]]
    number = 0
    for kind, content in component_sections(component):
        changed = content
        if kind == CORE_MODULE:
            own = {place for exporter, place in sealed if exporter == number}
            changed = _rewritten(content, modules[number], values[number], own)
            number += 1
        written += (bytes((kind,)), encode_number(len(changed)), changed)
    return b"".join(written)


# --- what is constant -----------------------------------------------------------------------------


def _sources(layout: Layout, modules: Sequence[_LinkedModule]) -> list[list[_Source | None]]:
    """By module: where each of its imported globals is from."""
    placed: dict[int, ModuleInstance] = {}
    for entry in layout.instances:
        if isinstance(entry, ModuleInstance):
            if entry.module in placed:
                raise unexpected("it is instantiated twice")
            placed[entry.module] = entry
    return [
        [_source(one, placed[number], layout, modules) for one in module.imported]
        for number, module in enumerate(modules)
    ]


def _source(
    wanted: Import, entry: ModuleInstance, layout: Layout, modules: Sequence[_LinkedModule]
) -> _Source | None:
    at = layout.resolve(entry.imports[wanted.module], wanted.name)
    exporter = layout.instances[at.instance] if isinstance(at, CoreExport) else None
    if isinstance(exporter, ModuleInstance):
        number = modules[exporter.module].exported(at.name)
        if number is not None:
            return exporter.module, number
    return None


def _values(
    module: _LinkedModule,
    sources: Sequence[_Source | None],
    modules: Sequence[_LinkedModule],
    earlier: Sequence[Mapping[int, int]],
) -> dict[int, int]:
    """By number: the values of its constant globals, first the imported ones, then its own.
    ``earlier`` has those of the modules before it."""
    values: dict[int, int] = {}
    for place, (one, source) in enumerate(zip(module.imported, sources, strict=True)):
        kind, mutable = one.encoded[-2:]
        constant = not mutable or one.module in _SET_BY_LINKER or module.never_runs
        if constant and kind == _I32 and source is not None and source[0] < len(earlier):
            exporter, number = source
            value = _value(modules[exporter].own[number].start, earlier[exporter])
            if value is not None:
                values[place] = value
    for place, own in enumerate(module.own, len(module.imported)):
        value = None if own.mutable or own.kind != _I32 else _value(own.start, values)
        if value is not None:
            values[place] = value
    return values


def _value(expression: bytes, values: Mapping[int, int]) -> int | None:
    """The value of a constant expression of additions."""
    stack: list[int] = []
    for opcode, start, _ in instructions_in(expression, 0):
        if opcode == _I32_CONST:
            stack.append(read_signed(expression, start + 1)[0])
        elif opcode == _GLOBAL_GET and (place := read_number(expression, start + 1)[0]) in values:
            stack.append(values[place])
        elif opcode == _I32_ADD:
            stack.append(stack.pop() + stack.pop())
        elif opcode != _END:
            return None
    return stack[0]


def _sealed(
    modules: Sequence[_LinkedModule],
    sources: Sequence[Sequence[_Source | None]],
    values: Sequence[Mapping[int, int]],
) -> set[_Source]:
    """The mutable globals whose imports are all replaced: they become immutable."""
    replaced, kept = set[_Source](), set[_Source]()
    for found, known in zip(sources, values, strict=True):
        for place, source in enumerate(found):
            if source is not None:
                (replaced if place in known else kept).add(source)
    mutable = {one for one in replaced if modules[one[0]].own[one[1]].mutable}
    if mutable & kept:
        raise unexpected("it imports a global that was taken for a constant")
    return mutable


# --- the changed module ---------------------------------------------------------------------------


def _rewritten(
    content: bytes, module: _LinkedModule, values: Mapping[int, int], sealed: set[int]
) -> bytes:
    dropped = {place for place in values if place < len(module.imported)}
    if not values and not sealed:
        return content
    sections, imported = dict(module.sections), len(module.imported)
    kept = [place for place in range(imported + len(module.own)) if place not in dropped]
    numbers = {before: after for after, before in enumerate(kept)}
    fixed = {*values, *(imported + place for place in sealed)}
    if DATA in sections and dropped:
        raise unexpected("its data has addresses in globals")
    if IMPORTS in sections:
        sections[IMPORTS] = _written(_kept_imports(module, dropped))
    if GLOBALS in sections:
        own = enumerate(module.own)
        sections[GLOBALS] = _written(
            [_with_value(one, values.get(imported + n), n in sealed) for n, one in own]
        )
    if EXPORTS in sections:
        sections[EXPORTS] = _written([_exported(*one, numbers) for one in module.exports])
    if ELEMENTS in sections:
        sections[ELEMENTS] = _written([one.with_offset(values) for one in module.segments])
    if CODE in sections:
        bodies = bodies_in(sections[CODE])
        if module.never_runs:
            changed = [_UNREACHABLE_BODY] * len(bodies)
        else:
            changed = [_with_constants(code, values, fixed, numbers) for code in bodies]
        sections[CODE] = _written([encode_number(len(code)) + code for code in changed])
    return encode_sections(content, sections)


def _kept_imports(module: _LinkedModule, dropped: set[int]) -> list[bytes]:
    place, kept = -1, []
    for one in module.imports:
        place += one.kind == GLOBAL
        if one.kind != GLOBAL or place not in dropped:
            kept.append(one.encoded)
    return kept


def _with_value(one: _Global, value: int | None, seal: bool) -> bytes:
    start = one.start if value is None else _constant(value) + bytes((_END,))
    return bytes((one.kind, one.mutable and not seal)) + start


def _with_constants(
    code: bytes, values: Mapping[int, int], fixed: Set[int], numbers: Mapping[int, int]
) -> bytes:
    """A body with constants for its reads of constant globals. ``global + number`` becomes one."""
    pieces: list[bytes] = []
    kept = 0
    for opcode, start, end in instructions_in(code, _end_of_variables(code)):
        if opcode not in (_GLOBAL_GET, _GLOBAL_SET):
            continue
        place = read_number(code, start + 1)[0]
        if opcode == _GLOBAL_SET and place in fixed:
            raise unexpected("it sets a global that was taken for a constant")
        if place in values:
            number, after = _added(code, end)
            piece = _constant(values[place] + number)
        else:
            piece, after = bytes((opcode,)) + encode_number(numbers[place]), end
        pieces += (code[kept:start], piece)
        kept = after
    return b"".join((*pieces, code[kept:]))


def _added(code: bytes, place: int) -> tuple[int, int]:
    """The number that the next instructions add to a value, and their end."""
    if code[place] == _I32_CONST:
        number, end = read_signed(code, place + 1)
        if code[end] == _I32_ADD:
            return number, end + 1
    return 0, place


def _constant(value: int) -> bytes:
    value &= 0xFFFF_FFFF
    return bytes((_I32_CONST,)) + encode_signed(value - (value >> 31 << 32))


def _exported(name: str, kind: int, number: int, numbers: Mapping[int, int]) -> bytes:
    number = numbers[number] if kind == GLOBAL else number
    encoded = name.encode()
    return encode_number(len(encoded)) + encoded + bytes((kind,)) + encode_number(number)


def _written(items: Sequence[bytes]) -> bytes:
    return encode_number(len(items)) + b"".join(items)


# --- reading --------------------------------------------------------------------------------------


class _Segment(NamedTuple):
    """A segment of elements."""

    head: bytes
    offset: bytes
    """An expression."""
    rest: bytes
    functions: list[int]

    def with_offset(self, values: Mapping[int, int]) -> bytes:
        value = _value(self.offset, values)
        if value is None:
            raise unexpected("the place of its functions is not constant")
        return self.head + _constant(value) + bytes((_END,)) + self.rest


def _globals_in(section: bytes) -> Iterator[_Global]:
    count, place = read_number(section, 0)
    for _ in range(count):
        end = _end_of_expression(section, place + 2)
        yield _Global(section[place], section[place + 1] == _MUTABLE, section[place + 2 : end])
        place = end


def _exports_in(section: bytes) -> Iterator[tuple[str, int, int]]:
    """Name, kind and number."""
    count, place = read_number(section, 0)
    for _ in range(count):
        length, start = read_number(section, place)
        kind_at = start + length
        number, place = read_number(section, kind_at + 1)
        yield section[start:kind_at].decode(), section[kind_at], number


def _segments_in(section: bytes) -> Iterator[_Segment]:
    count, place = read_number(section, 0)
    for _ in range(count):
        start, kind = place, section[place]
        if kind not in (_ACTIVE, _ACTIVE_IN_TABLE):
            raise unexpected("it has functions without a place")
        place = read_number(section, place + 1)[1] if kind == _ACTIVE_IN_TABLE else place + 1
        end = _end_of_expression(section, place)
        listed, after = read_number(section, end + (kind == _ACTIVE_IN_TABLE))
        functions = []
        for _ in range(listed):
            function, after = read_number(section, after)
            functions.append(function)
        yield _Segment(section[start:place], section[place:end], section[end:after], functions)
        place = after


def _end_of_expression(data: bytes, place: int) -> int:
    return next(end for opcode, _, end in instructions_in(data, place) if opcode == _END)


def _end_of_variables(code: bytes) -> int:
    groups, place = read_number(code, 0)
    for _ in range(groups):
        place = read_number(code, place)[1] + 1
    return place
