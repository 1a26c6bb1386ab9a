"""Static checks before anything runs: what is blocked here could never work, and says so early.

They are advice to the author, not the wall: the wall is WebAssembly. Only syntax counts, so words
inside string literals are never flagged; and where a host offers a tool ``open``, it can be called.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Iterator

__all__ = ["Node", "Violation", "first_violation"]

Node = ast.stmt | ast.expr | ast.alias | ast.pattern

_MODULES = frozenset(
    (
        "ctypes",
        "http",
        "io",
        "multiprocessing",
        "os",
        "pathlib",
        "requests",
        "shutil",
        "socket",
        "subprocess",
        "sys",
        "threading",
        "urllib",
    )
)
_CODE = frozenset(("exec", "eval", "compile", "__import__"))
_CALLS = _CODE | {"open"}
_NAMES = frozenset(
    (
        "__bases__",
        "__builtins__",
        "__class__",
        "__globals__",
        "__import__",
        "__mro__",
        "__subclasses__",
    )
)
_TOOLS = frozenset(("fetch_url", "query_db", "send_email"))

_USE_TOOLS = "the outside world is reached through tools: list_tools() says which there are"
_USE_CODE = "write the code itself, or the import statement: what runs is checked before"
_USE_PUBLIC = "type(), isinstance() and public names tell what a program may know"
_USE_FULL_NAME = "import the module by its full name"


class Violation(Exception):
    """Where the program asks for what it cannot have."""

    def __init__(self, code: str, message: str, hint: str, node: Node) -> None:
        super().__init__(message)
        self.code, self.hint, self.node = code, hint, node

    @property
    def place(self) -> tuple[int, int]:
        """Where a reader meets it: an attribute's name is the end of its expression."""
        node = self.node
        if isinstance(node, ast.Attribute):
            return node.end_lineno or 0, node.end_col_offset or 0
        return node.lineno, node.col_offset


def first_violation(tree: ast.Module, tools: Container[str]) -> Violation | None:
    """The first one in the order of the source."""
    found = (violation for node in ast.walk(tree) for violation in _of(node, tools))
    return min(found, key=lambda violation: violation.place, default=None)


def _of(node: ast.AST, tools: Container[str]) -> Iterator[Violation]:
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from _of_import(node)
        case ast.Call(func=ast.Name(id=name)) if name not in tools:
            yield from _of_call(name, node)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield from _of_names((name,), node)
        case ast.MatchClass(kwd_attrs=names):
            yield from _of_names(names, node)
        case _:
            pass


def _of_import(node: ast.Import | ast.ImportFrom) -> Iterator[Violation]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from _of_module(alias.name, alias)
    elif node.level:
        message = "relative imports have nothing to be relative to"
        yield Violation("UNSUPPORTED_FEATURE", message, _USE_FULL_NAME, node)
    else:
        yield from _of_module(node.module or "", node)
        for alias in node.names:
            yield from _of_names((alias.name,), alias)


def _of_module(name: str, node: Node) -> Iterator[Violation]:
    top = name.partition(".")[0]
    if top in _MODULES:
        message = f"module {top!r} is not available in the sandbox"
        yield Violation("UNSUPPORTED_FEATURE", message, _USE_TOOLS, node)


def _of_call(name: str, node: Node) -> Iterator[Violation]:
    if name in _CALLS:
        hint = _USE_CODE if name in _CODE else _USE_TOOLS
        message = f"{name}() is not available in the sandbox"
        yield Violation("UNSUPPORTED_FEATURE", message, hint, node)
    if name in _TOOLS:
        hint = "list_tools() says what can be called"
        yield Violation("UNKNOWN_TOOL", f"no tool {name!r} is registered", hint, node)


def _of_names(names: Iterable[str], node: Node) -> Iterator[Violation]:
    for name in names:
        if name in _NAMES:
            message = f"{name} is not available in the sandbox"
            yield Violation("UNSUPPORTED_FEATURE", message, _USE_PUBLIC, node)
