"""Which value is the result of a run: what the program assigned to ``result``, or its last value.

Only a plain assignment at the top level makes ``result`` a contract. A loop variable, an import or
a function of that name is no result at all, and the last expression counts then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum
from typing import Any

from guest.faults import NotSerializable
from guest.values import contracted, converted

__all__ = ["Claim", "claim_of", "reply_with"]

_NAME = "result"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Claim(Enum):
    """What a program's text does with the name ``result``."""

    CONTRACT = "a plain assignment at the top level"
    OTHER = "a loop variable, an import, a function ..."
    NONE = "nothing at the top level"


def claim_of(tree: ast.Module, source: str) -> Claim:
    found = Claim.NONE
    if _NAME not in source:
        return found
    for node in _top_level(tree):
        match node:
            case ast.Assign(targets=targets) if any(map(_is_result, targets)):
                return Claim.CONTRACT
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                if _is_result(target):
                    return Claim.CONTRACT
            case _ if _binds_otherwise(node):
                found = Claim.OTHER
    return found


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and expressions that run in the program's own namespace."""
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


def reply_with(claim: Claim, names: dict[str, Any], last: Any, calls: int) -> dict[str, Any]:
    """The reply that ends a run; ``calls`` of tools have been made by it."""
    if claim is Claim.CONTRACT and _NAME in names:
        found, problem = contracted(names[_NAME])
        if problem is not None:
            raise NotSerializable(f"the result is not plain JSON: {problem}{_acted(calls)}")
    elif claim is not Claim.OTHER and _NAME in names:
        found = converted(names[_NAME])
    else:
        found = converted(last)
    reply: dict[str, Any] = {"value": found.value, "kind": found.kind}
    if found.cut:
        reply["cut"] = True
    return reply


def _acted(calls: int) -> str:
    if not calls:
        return ""
    return f"; {calls} calls of tools were made before and are not undone"
