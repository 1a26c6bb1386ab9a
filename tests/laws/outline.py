"""What a module defines and mentions, found in one pass over its syntax tree."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from tests.laws.source import Module, dotted, nodes

__all__ = ["Class", "Function", "Outline", "outline", "overhead"]


class Class(NamedTuple):
    name: str
    line: int
    bases: tuple[str, ...]
    """Dotted names of the bases, without their type arguments."""
    keywords: dict[str, object]
    """Constants among the keywords of the ``class`` line: ``{"frozen": True, "tag": "a.b.v1"}``."""


class Function(NamedTuple):
    name: str
    qualname: str
    line: int
    body_lines: int
    """From the first statement after the docstring to the end."""


class Outline(NamedTuple):
    classes: list[Class]
    functions: list[Function]
    """Methods and functions inside others as well."""
    strings: list[tuple[int, str]]
    """Line and value of every string literal; bytes are read as text."""


@cache
def outline(module: Module) -> Outline:
    found = Outline([], [], [])
    pending: list[tuple[ast.AST, str]] = [(module.tree, "")]
    while pending:
        node, within = pending.pop()
        match node:
            case ast.ClassDef():
                found.classes.append(_class(node))
                within = f"{within}{node.name}."
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.functions.append(_function(node, within))
                within = f"{within}{node.name}."
            case ast.Constant(value=str() as text):
                found.strings.append((node.lineno, text))
            case ast.Constant(value=bytes() as data):
                found.strings.append((node.lineno, data.decode("latin-1")))
        pending += [(child, within) for child in ast.iter_child_nodes(node)]
    return found


def _class(node: ast.ClassDef) -> Class:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    keywords = {
        keyword.arg: keyword.value.value
        for keyword in node.keywords
        if keyword.arg and isinstance(keyword.value, ast.Constant)
    }
    return Class(node.name, node.lineno, tuple(dotted(base) for base in bases), keywords)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, within: str) -> Function:
    body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
    length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
    return Function(node.name, within + node.name, node.lineno, length)


def overhead(module: Module) -> int:
    """Lines of imports and ``__all__``: what a file costs before it says anything."""
    return sum(
        (node.end_lineno or 0) - node.lineno + 1
        for node in nodes(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Assign) and dotted(node.targets[0]) == "__all__")
    )
