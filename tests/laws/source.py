"""The checkout as the laws see it: files, syntax trees, imports and dotted names."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("schemas", "bus", "actors", "ops")
MADE_BY_TOOLS = ("__pycache__", "build", "dist")


class Module(NamedTuple):
    """One Python file; ``path`` is relative to the checkout, with slashes."""

    path: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """``actors/kernel`` of ``actors/kernel/actor.py``."""
        return self.path.rpartition("/")[0]

    @property
    def is_face(self) -> bool:
        """Whether the module is the ``__init__`` of its package."""
        return self.name == "__init__"

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py")


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """All Python files of these top folders."""
    with _uncollected():
        return tuple(
            _read(path)
            for path in files()
            if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders
        )


@contextmanager
def _uncollected() -> Iterator[None]:
    """No pass of the collector over trees that live until the end: such passes took 5.5 of the 6.7
    seconds that parsing takes."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


@cache
def _read(path: Path) -> Module:
    """Parsing is what the laws take their time for: each file is parsed once a process."""
    return written(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))


def written(path: str, text: str) -> Module:
    """The module this text would be: laws are tested on trees that exist nowhere else."""
    return Module(path, text, ast.parse(text))


@cache
def files() -> tuple[Path, ...]:
    """What a clone holds: everything but the folders tools make (no git needed to know)."""
    return tuple(_walk(ROOT))


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        made = path.name in MADE_BY_TOOLS or path.name.endswith(".egg-info")
        hidden = path.name.startswith(".") and path.name not in (".ci", ".gitignore")
        if made or hidden or path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path


@cache
def _nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def nodes(module: Module) -> tuple[ast.AST, ...]:
    """Every node of the file: each law looks at all of them, so each tree is walked once."""
    return _nodes(module.tree)


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, wherever in the file it stands."""
    for node in nodes(module):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}"


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an attribute chain, whatever it hangs on."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        names.append(node.id)
    return ".".join(reversed(names))


def under(name: str, *prefixes: str) -> bool:
    """Whether a dotted name is one of ``prefixes`` or stands below one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def functions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def expect_none(found: list[str]) -> None:
    """Every finding on a line of its own: a law names all who break it at once."""
    assert not found, "\n" + "\n".join(found)
