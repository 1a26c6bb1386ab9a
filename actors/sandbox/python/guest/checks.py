"""Static checks of a program: they report early what cannot work in the sandbox.

The checks advise the author; WebAssembly isolates the program. They look at syntax only, so text in
a string literal is never reported. A program may call ``open`` if the host offers a tool ``open``.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from guest import refusals
from guest.system.file_tree import HOME, TEMPORARY

__all__ = ["CheckContext", "Node", "SourceViolation", "first_violation"]

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
_KINDS = (ast.Import, ast.ImportFrom, ast.Call, ast.Name, ast.Attribute, ast.MatchClass)
_CALLS = _TOOLS | {"__import__", "open"}
_OS_CALLS = frozenset(
    "execl execle execlp execlpe execv execve execvp execvpe fork forkpty kill popen posix_spawn"
    " spawnl spawnv startfile system".split()
)
_IMPORT_ERRORS = frozenset(("BaseException", "Exception", "ImportError", "ModuleNotFoundError"))
_PATHS_ALLOWED = frozenset(("/dev/null",))

_USE_PUBLIC = "type(), isinstance() and public names tell what a program may know"
_USE_FULL_NAME = "import the module by its full name"


class CheckContext(NamedTuple):
    """What a program can use when it starts: tools, names and modules."""

    tools: Mapping[str, bool] = MappingProxyType({})
    """By name: whether calls of the tool are awaited."""
    names: Container[str] = ()
    """Defined by earlier runs of the session."""
    has_module: Callable[[str], bool] = lambda _name: True


class SourceViolation(Exception):
    """A place in the source that uses what the sandbox does not have."""

    def __init__(self, code: str, message: str, hint: str, node: Node) -> None:
        super().__init__(message)
        self.code, self.hint, self.node = code, hint, node

    @property
    def position(self) -> tuple[int, int]:
        """Line and column; for an attribute the end of the expression, where its name is."""
        node = self.node
        if isinstance(node, ast.Attribute):
            return node.end_lineno or 0, node.end_col_offset or 0
        return node.lineno, node.col_offset


def _unsupported(words: tuple[str, str], node: Node) -> SourceViolation:
    """``words`` are the message and the hint."""
    return SourceViolation("UNSUPPORTED_FEATURE", words[0], words[1], node)


def first_violation(tree: ast.Module, source: str, context: CheckContext) -> SourceViolation | None:
    """The first violation in the order of the source."""
    nodes: dict[type, list[Any]] = {}
    for node in ast.walk(tree):
        nodes.setdefault(type(node), []).append(node)
    if nodes.keys().isdisjoint(_KINDS):
        return None
    found = _Checker(nodes, source, context).violations()
    return min(found, key=lambda violation: violation.position, default=None)


class _Checker:
    """Checks one program, whose nodes are grouped by their kind."""

    def __init__(self, nodes: dict[type, list[Any]], source: str, context: CheckContext) -> None:
        self._nodes, self._source, self._context = nodes, source, context

    def _all(self, *kinds: type) -> Iterator[Any]:
        return chain.from_iterable(self._nodes.get(kind, ()) for kind in kinds)

    def violations(self) -> Iterator[SourceViolation]:
        for node in self._all(ast.Import, ast.ImportFrom):
            if node not in self._for_types:
                yield from self._of_import(node)
        for call in self._all(ast.Call):
            yield from self._of_call(call)
        for name in self._all(ast.Name):
            if name.id in _NAMES and name not in self._common_uses:
                yield from _of_names((name.id,), name)
        for attribute in self._all(ast.Attribute):
            if attribute.attr in _NAMES and not self._is_common_use(attribute):
                yield from _of_names((attribute.attr,), attribute)
        for pattern in self._all(ast.MatchClass):
            yield from _of_names(pattern.kwd_attrs, pattern)

    @cached_property
    def _classes(self) -> set[str]:
        return {node.name for node in self._all(ast.ClassDef)}

    @cached_property
    def _defined(self) -> set[str]:
        """Every name the program binds."""
        found = {node.name for node in self._all(ast.FunctionDef, ast.AsyncFunctionDef)}
        found |= self._classes | {node.arg for node in self._all(ast.arg)}
        found |= {node.id for node in self._all(ast.Name) if isinstance(node.ctx, ast.Store)}
        return found | {a.asname or a.name.partition(".")[0] for a in self._all(ast.alias)}

    @cached_property
    def _guarded(self) -> set[ast.AST]:
        """Nodes in a ``try`` whose handlers catch a failed import, or in such a handler."""
        blocks: list[ast.stmt] = []
        for node in self._all(ast.Try):
            if caught := [handler for handler in node.handlers if _catches_import(handler)]:
                blocks += chain(node.body, *(handler.body for handler in caught))
        return {inner for part in blocks for inner in ast.walk(part)}

    @cached_property
    def _for_types(self) -> set[ast.AST]:
        """Nodes that only type checkers read."""
        tests = [node for node in self._all(ast.If) if _is_for_types(node.test)]
        return {inner for node in tests for part in node.body for inner in ast.walk(part)}

    @cached_property
    def _common_uses(self) -> set[ast.AST]:
        """Blocked names in common, harmless uses."""
        described = {node.value for node in self._all(ast.Attribute) if node.attr in _OF_A_CLASS}
        return described | {node.func for node in self._all(ast.Call) if _names_a_module(node)}

    def _is_common_use(self, node: ast.Attribute) -> bool:
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if node.attr == "__class__":
            return node in self._common_uses or owner in _OWN_OBJECTS
        return node.attr in _OF_OWN_CLASSES and owner in self._classes

    def _of_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[SourceViolation]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._of_module(alias.name, alias, node)
        elif node.level:
            message = "relative imports have nothing to be relative to"
            yield SourceViolation("UNSUPPORTED_FEATURE", message, _USE_FULL_NAME, node)
        else:
            module = node.module or ""
            yield from self._of_module(module, node, node)
            for alias in node.names:
                yield from _of_names((alias.name,), alias)
                if words := refusals.refused_module(f"{module}.{alias.name}", self._context.tools):
                    yield _unsupported(words, alias)

    def _of_module(self, name: str, node: Node, statement: ast.AST) -> Iterator[SourceViolation]:
        words = refusals.refused_module(name, self._context.tools)
        if words is None and statement not in self._guarded:
            words = self._absent(name)
        if words is not None:
            yield _unsupported(words, node)

    def _absent(self, name: str) -> tuple[str, str] | None:
        """Message and hint for a missing module, unless the program may create it itself."""
        made = (".py", "sys.modules", "sys.path", "ModuleType", "meta_path")
        top = name.partition(".")[0]
        if self._context.has_module(name) or f"{top}.py" in self._source:
            return None
        if refusals.absent_module(name) is None and any(text in self._source for text in made):
            return None
        return refusals.absent_module(name) or refusals.library_hint(name)

    def _of_call(self, node: ast.Call) -> Iterator[SourceViolation]:
        function = node.func
        if isinstance(function, ast.Name):
            name = function.id
            if name in _CALLS and name not in self._context.tools:
                yield from self._of_named_call(name, node)
        elif isinstance(function, ast.Attribute) and _is_of_os(function):
            words = refusals.blocked_call(f"os.{function.attr}", self._context.tools)
            yield _unsupported(words, node)

    def _of_named_call(self, name: str, node: ast.Call) -> Iterator[SourceViolation]:
        if name in self._defined or name in self._context.names:
            return
        first = node.args[0] if node.args else None
        text = first.value if isinstance(first, ast.Constant) else None
        if name in _TOOLS:
            hint = "list_tools() says what can be called"
            yield SourceViolation("UNKNOWN_TOOL", f"no tool {name!r} is registered", hint, node)
        elif isinstance(text, str) and name == "__import__":
            yield from self._of_module(text, node, node)
        elif isinstance(text, str) and _is_outside(text):
            yield _unsupported(refusals.outside_path(text, self._context.tools), node)


def _is_of_os(function: ast.Attribute) -> bool:
    owner = function.value
    return function.attr in _OS_CALLS and isinstance(owner, ast.Name) and owner.id == "os"


def _names_a_module(call: ast.Call) -> bool:
    match call:
        case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str()), *_]):
            return True
        case _:
            return False


def _is_for_types(test: ast.expr) -> bool:
    """Whether the condition is ``TYPE_CHECKING``, which is false in a run."""
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _catches_import(handler: ast.ExceptHandler) -> bool:
    caught = [handler.type]
    if isinstance(handler.type, ast.Tuple):
        caught = [*handler.type.elts]
    return any(kind is None or getattr(kind, "id", "") in _IMPORT_ERRORS for kind in caught)


def _is_outside(path: str) -> bool:
    whole = posixpath.normpath(posixpath.join(HOME, path))
    return whole not in _PATHS_ALLOWED and not f"{whole}/".startswith((f"{HOME}/", f"{TEMPORARY}/"))


def _of_names(names: Iterable[str], node: Node) -> Iterator[SourceViolation]:
    for name in names:
        if name in _NAMES:
            message = f"{name} is not available in the sandbox"
            yield SourceViolation("UNSUPPORTED_FEATURE", message, _USE_PUBLIC, node)
