"""Awaits that fit both kinds of tools.

A synchronous tool returns its value at once, so a program that awaits the call, or passes it to
``asyncio.gather``, would fail after the tool has acted. Therefore ``await`` of such a call gives
its value, and asyncio takes plain JSON values where it takes coroutines. A program that awaits
nothing and calls an awaited tool at its top level awaits that call.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Container, Mapping
from typing import Any

__all__ = ["READY", "awaitable", "install", "rewrite", "wait_hint"]

READY = "@ready"
"""The builtin that the rewritten program calls; no program can spell it."""
_PLAIN = frozenset((type(None), bool, int, float, str, list, dict))
_BINDERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ASYNC = (ast.Await, ast.AsyncFor, ast.AsyncWith)


async def _give(value: Any) -> Any:
    return value


def awaitable(value: Any) -> Any:
    """A coroutine that returns a plain JSON value; anything else as it is."""
    if type(value) not in _PLAIN:
        return value
    parts = value.values() if type(value) is dict else value if type(value) is list else ()
    return value if any(map(_is_awaitable, parts)) else _give(value)


def _is_awaitable(value: Any) -> bool:
    """A list of these is a mistake: the program has to pass its elements."""
    return hasattr(type(value), "__await__")


class _TopLevelNames(ast.NodeVisitor):
    """What a program awaits at its top level, and which names it binds anywhere."""

    def __init__(self, tree: ast.Module) -> None:
        self.awaits, self.bound = False, set[str]()
        for node in ast.walk(tree):
            if isinstance(node, _BINDERS):
                self.bound.add(node.name)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                self.bound.add(node.id)
            elif isinstance(node, ast.alias):
                self.bound.add(node.asname or node.name)
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (*_BINDERS, ast.Lambda)):
            return
        is_async = isinstance(node, ast.comprehension) and bool(node.is_async)
        self.awaits = self.awaits or is_async or isinstance(node, _ASYNC)
        self.generic_visit(node)


class _SynchronousCalls(ast.NodeTransformer):
    """Makes ``await price('tea')`` give the value of a synchronous tool."""

    def __init__(self, tools: Mapping[str, bool]) -> None:
        self._tools = tools

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        match node.value:
            case ast.Call(func=ast.Name(id=name)) if self._tools.get(name) is False:
                ready = ast.copy_location(ast.Name(READY, ast.Load()), node.value)
                node.value = ast.copy_location(ast.Call(ready, [node.value], []), node.value)
        return node


class _AwaitedCalls(ast.NodeTransformer):
    """Awaits the calls of awaited tools at the top level."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def _unchanged(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _unchanged  # noqa: N815
    visit_Lambda = visit_GeneratorExp = _unchanged  # noqa: N815

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Name(id=name) if name in self._names:
                return ast.copy_location(ast.Await(node), node)
        return node


def rewrite(
    tree: ast.Module, source: str, tools: Mapping[str, bool], shadowed: Container[str]
) -> None:
    """Make the awaits of a program fit its tools, in place. ``tools``: by name, whether calls are
    awaited; ``shadowed``: the names of the session."""
    used = {name: tools[name] for name in tools if name in source and name not in shadowed}
    awaited = frozenset(name for name in used if used[name])
    if awaited:
        names = _TopLevelNames(tree)
        if not names.awaits and (calls := awaited - names.bound):
            _AwaitedCalls(calls).visit(tree)
    if len(awaited) < len(used) and "await" in source:
        _SynchronousCalls(used).visit(tree)


def wait_hint(text: str) -> str | None:
    """What to change in a program that awaits a plain value, or does not await a call. ``text`` is
    its error."""
    if "asyncio.Future'" in text:
        return "a call of an awaited tool returns a future: await it"
    if text.startswith("TypeError") and text.endswith("can't be awaited"):
        return "a call of a synchronous tool returns its value: use it without await"
    return None


def install() -> None:
    """Let asyncio take plain values; the guest's loop does so itself."""
    tasks: Any = asyncio.tasks
    ensure, wait, gather, complete = (
        tasks.ensure_future,
        tasks.wait_for,
        tasks.gather,
        tasks.as_completed,
    )

    def ensure_future(value: Any, *, loop: Any = None) -> Any:
        return ensure(awaitable(value), loop=loop)

    def wait_for(value: Any, timeout: float | None) -> Any:
        return wait(awaitable(value), timeout)

    def gather_all(*values: Any, return_exceptions: bool = False) -> Any:
        return gather(*map(awaitable, values), return_exceptions=return_exceptions)

    def as_completed(values: Any, *, timeout: float | None = None) -> Any:
        return complete([awaitable(value) for value in values], timeout=timeout)

    gather_all.__name__ = "gather"
    for function in (ensure_future, wait_for, gather_all, as_completed):
        name = function.__qualname__ = function.__name__
        function.__module__ = tasks.__name__
        for module in (asyncio, tasks):
            vars(module)[name] = function
