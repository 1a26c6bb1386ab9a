"""Static checks before anything runs: what is blocked here could never work, and says so early.

They are advice to the author, not the wall: the wall is WebAssembly. Only syntax counts, so words
inside string literals are never flagged; and where a host offers a tool ``open``, it can be called.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

from guest import refusals
from guest.system.file_tree import HOME

__all__ = ["Node", "Surroundings", "Violation", "first_violation"]

Node = ast.stmt | ast.expr | ast.alias | ast.pattern

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
_OF_OWN_CLASSES = frozenset(("__bases__", "__mro__", "__subclasses__"))
_OF_A_CLASS = frozenset(("__doc__", "__module__", "__name__", "__qualname__"))
_OWN_OBJECTS = frozenset(("cls", "other", "self"))
_TOOLS = frozenset(("fetch_url", "query_db", "send_email"))
_OS_CALLS = frozenset(
    "execl execle execlp execlpe execv execve execvp execvpe fork forkpty kill popen posix_spawn"
    " spawnl spawnv startfile system".split()
)
_IMPORT_ERRORS = frozenset(("BaseException", "Exception", "ImportError", "ModuleNotFoundError"))
_PATHS_ALLOWED = frozenset(("/dev/null",))

_USE_PUBLIC = "type(), isinstance() and public names tell what a program may know"
_USE_FULL_NAME = "import the module by its full name"


class Surroundings(NamedTuple):
    """What the program finds when it starts."""

    tools: Container[str] = ()
    names: Container[str] = ()
    """Defined by earlier runs of the session."""
    has_module: Callable[[str], bool] = lambda _name: True


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


def _unsupported(words: tuple[str, str], node: Node) -> Violation:
    """``words`` are the message and the hint."""
    return Violation("UNSUPPORTED_FEATURE", words[0], words[1], node)


def first_violation(tree: ast.Module, source: str, around: Surroundings) -> Violation | None:
    """The first one in the order of the source."""
    found = _Checker(tree, source, around).violations()
    return min(found, key=lambda violation: violation.place, default=None)


class _Checker:
    """One program; what its syntax says of itself is collected first."""

    def __init__(self, tree: ast.Module, source: str, around: Surroundings) -> None:
        self._source, self._around = source, around
        self._nodes = list(ast.walk(tree))
        self._classes: set[str] = set()
        self._defined: set[str] = set()
        self._guarded: set[ast.AST] = set()
        """Imports whose failure the program handles."""
        self._everyday: set[ast.AST] = set()
        """Blocked names in uses that ask for no more than programs ask for every day."""
        for node in self._nodes:
            self._collect(node)

    def _collect(self, node: ast.AST) -> None:
        match node:
            case ast.ClassDef(name=name):
                self._classes.add(name)
                self._defined.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                self._defined.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                self._defined.add(name)
            case ast.alias(name=name, asname=bound):
                self._defined.add(bound or name.partition(".")[0])
            case ast.Attribute(value=value, attr=attr) if attr in _OF_A_CLASS:
                self._everyday.add(value)
            case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str()), *_]):
                self._everyday.add(node.func)
            case ast.Try(handlers=handlers) if any(map(_catches_import, handlers)):
                for statement in node.body:
                    self._guarded.update(ast.walk(statement))
            case _:
                pass

    def violations(self) -> Iterator[Violation]:
        for node in self._nodes:
            yield from self._of(node)

    def _of(self, node: ast.AST) -> Iterator[Violation]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._of_import(node)
            case ast.Call(func=ast.Name(id=name)) if name not in self._around.tools:
                yield from self._of_call(name, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr=name)):
                if name in _OS_CALLS:
                    words = refusals.blocked_call(f"os.{name}", self._around.tools)
                    yield _unsupported(words, node)
            case ast.Name(id=name) if node not in self._everyday:
                yield from _of_names((name,), node)
            case ast.Attribute(attr=name) if not self._is_everyday(node):
                yield from _of_names((name,), node)
            case ast.MatchClass(kwd_attrs=names):
                yield from _of_names(names, node)
            case _:
                pass

    def _is_everyday(self, node: ast.Attribute) -> bool:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr == "__class__":
            return node in self._everyday or owner in _OWN_OBJECTS
        return node.attr in _OF_OWN_CLASSES and owner in self._classes

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Violation]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._of_module(alias.name, alias, node)
        elif node.level:
            message = "relative imports have nothing to be relative to"
            yield Violation("UNSUPPORTED_FEATURE", message, _USE_FULL_NAME, node)
        else:
            module = node.module or ""
            yield from self._of_module(module, node, node)
            for alias in node.names:
                yield from _of_names((alias.name,), alias)
                if words := refusals.refused_module(f"{module}.{alias.name}", self._around.tools):
                    yield _unsupported(words, alias)

    def _of_module(self, name: str, node: Node, statement: ast.AST) -> Iterator[Violation]:
        words = refusals.refused_module(name, self._around.tools)
        if words is None and statement not in self._guarded:
            words = self._absent(name)
        if words is not None:
            yield _unsupported(words, node)

    def _absent(self, name: str) -> tuple[str, str] | None:
        """A module that is nowhere, unless the program may bring it about itself."""
        top = name.partition(".")[0]
        made = (f"{top}.py", f"{top}/", "sys.modules", "sys.path", "ModuleType", "meta_path")
        if self._around.has_module(name) or any(text in self._source for text in made):
            return None
        return refusals.absent_module(name) or refusals.library_hint(name)

    def _of_call(self, name: str, node: ast.Call) -> Iterator[Violation]:
        if name in self._defined or name in self._around.names:
            return
        first = node.args[0] if node.args else None
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            first = None
        if name == "open" and first is not None and _is_outside(str(first.value)):
            words = refusals.outside_path(str(first.value), self._around.tools)
            yield _unsupported(words, node)
        if name == "__import__" and first is not None:
            yield from self._of_module(str(first.value), node, node)
        if name in _TOOLS:
            hint = "list_tools() says what can be called"
            yield Violation("UNKNOWN_TOOL", f"no tool {name!r} is registered", hint, node)


def _catches_import(handler: ast.ExceptHandler) -> bool:
    caught = [handler.type]
    if isinstance(handler.type, ast.Tuple):
        caught = [*handler.type.elts]
    return any(kind is None or getattr(kind, "id", "") in _IMPORT_ERRORS for kind in caught)


def _is_outside(path: str) -> bool:
    whole = posixpath.normpath(posixpath.join(HOME, path))
    return whole not in _PATHS_ALLOWED and not f"{whole}/".startswith(f"{HOME}/")


def _of_names(names: Iterable[str], node: Node) -> Iterator[Violation]:
    for name in names:
        if name in _NAMES:
            message = f"{name} is not available in the sandbox"
            yield Violation("UNSUPPORTED_FEATURE", message, _USE_PUBLIC, node)
