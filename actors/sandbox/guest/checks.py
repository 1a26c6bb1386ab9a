"""Static checks before anything runs: what is blocked here could never work, and says so early.

They are advice to the author, not the wall: the wall is WebAssembly. Only syntax counts, so words
inside string literals are never flagged.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

__all__ = ["Node", "Violation", "first_violation"]

Node = ast.stmt | ast.expr

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
_CALLS = frozenset(("open", "exec", "eval", "compile", "__import__"))
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


class Violation(Exception):
    """Where the program asks for what it cannot have."""

    def __init__(self, code: str, message: str, hint: str, node: Node) -> None:
        super().__init__(message)
        self.code, self.hint, self.node = code, hint, node


def first_violation(tree: ast.Module, tools: Container[str]) -> Violation | None:
    """The first one in the order of the source."""
    found = (violation for node in ast.walk(tree) for violation in _of(node, tools))
    return min(found, key=lambda v: (v.node.lineno, v.node.col_offset), default=None)


def _of(node: ast.AST, tools: Container[str]) -> Iterator[Violation]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield from _module(alias.name, node)
        case ast.ImportFrom(level=level) if level:
            yield _unsupported("relative imports have nothing to be relative to", node)
        case ast.ImportFrom(module=str() as module):
            yield from _module(module, node)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield _unsupported(f"{name}() is not available in the sandbox", node)
        case ast.Call(func=ast.Name(id=name)) if name in _TOOLS and name not in tools:
            hint = "list_tools() says what can be called"
            yield Violation("UNKNOWN_TOOL", f"no tool {name!r} is registered", hint, node)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in _NAMES:
            yield _unsupported(f"{name} is not available in the sandbox", node)
        case _:
            pass


def _module(name: str, node: Node) -> Iterator[Violation]:
    top = name.partition(".")[0]
    if top in _MODULES:
        yield _unsupported(f"module {top!r} is not available in the sandbox", node)


def _unsupported(message: str, node: Node) -> Violation:
    hint = "the outside world is reached through tools only"
    return Violation("UNSUPPORTED_FEATURE", message, hint, node)
