"""Finds packages that cannot be imported without compiled code, by their sources.

A module is unusable if its compiled code is missing, or if it imports an unusable module when it is
loaded, outside a ``try`` that catches the failure. A package with an unusable top module is refused
before anything is built.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

__all__ = ["COMPILED", "unusable_modules"]

COMPILED = (".so", ".pyd", ".dll", ".dylib")
_IMPORT_ERRORS = frozenset(("BaseException", "Exception", "ImportError", "ModuleNotFoundError"))


class _Module(NamedTuple):
    name: str
    package: str
    source: str


def unusable_modules(sources: Mapping[str, str]) -> dict[str, str]:
    """By the name of each unusable module: the compiled module that it needs. ``sources`` are
    the files of packages by their paths; those of compiled code may be empty."""
    modules = [_module(path, text) for path, text in sources.items() if path.endswith(".py")]
    present = {module.name for module in modules}
    names = (_compiled_name(path) for path in sources if path.endswith(COMPILED))
    needs = {name: name for name in names if name not in present}
    imported: dict[str, set[str]] = {}
    while found := dict(_newly_unusable(modules, needs, imported)):
        needs |= found
    return needs


def _newly_unusable(
    modules: Iterable[_Module], needs: Mapping[str, str], imported: dict[str, set[str]]
) -> Iterator[tuple[str, str]]:
    words = {name.rpartition(".")[2] for name in needs}
    for module in modules:
        if module.name in needs or not any(word in module.source for word in words):
            continue
        if module.name not in imported:
            imported[module.name] = set(_imports(module))
        for name in imported[module.name]:
            if name in needs:
                yield module.name, needs[name]
                break


def _module(path: str, source: str) -> _Module:
    parts = PurePosixPath(path).with_suffix("").parts
    if parts[-1] == "__init__":
        name = ".".join(parts[:-1])
        return _Module(name, name, source)
    return _Module(".".join(parts), ".".join(parts[:-1]), source)


def _compiled_name(path: str) -> str:
    place = PurePosixPath(path)
    return ".".join((*place.parts[:-1], place.name.partition(".")[0]))


def _imports(module: _Module) -> Iterator[str]:
    """The modules that are imported when the module is loaded, with their packages; none for a
    source that this Python cannot parse, such as one for a newer Python."""
    try:
        body = ast.parse(module.source).body
    except (SyntaxError, ValueError):
        return
    for node in _statements(body):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            above = module.package.split(".")[: _level_end(module.package, node.level)]
            source = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            names = [f"{source}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _level_end(package: str, level: int) -> int:
    return len(package.split(".")) - max(level - 1, 0)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that are executed when a module is loaded, and whose failure is not caught."""
    for node in body:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield node
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                continue
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                yield from _statements(node.orelse)
            case ast.Try() if any(map(_catches, node.handlers)):
                continue
            case _:
                for part in ("body", "orelse", "finalbody"):
                    yield from _statements(getattr(node, part, ()))


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in _IMPORT_ERRORS for kind in kinds)
