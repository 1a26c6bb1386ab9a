"""The result of a run: the value assigned to ``result``, or the value of the last expression.

Only a plain assignment at the top level makes ``result`` a contract. If ``result`` is a loop
variable, an import or a function, the last expression is the result.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from typing import Any

from guest.faults import NotSerializable
from guest.values import to_contract_json, to_evident_json

__all__ = ["ResultBinding", "binding_of", "reply_with"]

_NAME = "result"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class ResultBinding(Enum):
    """How a program binds the name ``result``."""

    CONTRACT = "a plain assignment at the top level"
    OTHER = "a loop variable, an import, a function ..."
    NONE = "nothing at the top level"


def binding_of(tree: ast.Module, source: str) -> ResultBinding:
    found = ResultBinding.NONE
    if _NAME not in source:
        return found
    for node in _top_level(tree):
        match node:
            case ast.Assign(targets=targets) if any(map(_is_result, targets)):
                return ResultBinding.CONTRACT
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                if _is_result(target):
                    return ResultBinding.CONTRACT
            case _ if _binds_otherwise(node):
                found = ResultBinding.OTHER
    return found


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and expressions that run in the program's top-level namespace."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _SCOPES):
            yield from _top_level(child)


def _is_result(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Name) and node.id == _NAME


def _binds_otherwise(node: ast.AST) -> bool:
    match node:
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return any(map(_is_result, ast.walk(target)))
        case ast.withitem(optional_vars=target):
            return _is_result(target)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name == _NAME
        case ast.ClassDef(name=name) | ast.ExceptHandler(name=name):
            return name == _NAME
        case ast.alias(name=name, asname=bound):
            return (bound or name.partition(".")[0]) == _NAME
        case _:
            return False


def reply_with(
    binding: ResultBinding, names: dict[str, Any], last: Any, calls: int
) -> dict[str, Any]:
    """The reply that ends a run, which has made ``calls`` calls of tools."""
    if binding is ResultBinding.CONTRACT and _NAME in names:
        found, problem = to_contract_json(names[_NAME])
        if problem is not None:
            raise NotSerializable(f"the result is not plain JSON: {problem}{_calls_made(calls)}")
    elif binding is not ResultBinding.OTHER and _NAME in names:
        found = to_evident_json(names[_NAME])
    else:
        found = to_evident_json(last)
    reply: dict[str, Any] = {"value": found.value, "kind": found.kind}
    if found.cut:
        reply["cut"] = True
    return reply


def _calls_made(calls: int) -> str:
    if not calls:
        return ""
    return f"; {calls} calls of tools were made before and are not undone"
