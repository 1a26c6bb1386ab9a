"""``asyncio.run`` and similar functions over the event loop of the guest.

At the top level of a program ``asyncio.run(f())`` becomes ``await f()``, so ``f`` can await tools
and the run can be suspended. Inside a function ``asyncio.run`` uses a separate loop, in which
timers work and awaited tool calls do not.
"""

from __future__ import annotations

import ast
import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from guest.loop import GuestLoop
from guest.system.awaited_values import awaitable

__all__ = ["install", "rewrite"]

_MODULE, _FUNCTION, _UNTIL = "asyncio", "run", "run_until_complete"
_run_alone: Any = asyncio.run
_present_loop = asyncio.get_event_loop


class Run:
    """``asyncio.run`` of a program."""

    __name__ = __qualname__ = _FUNCTION
    __module__ = "asyncio.runners"

    def __call__(
        self, main: Coroutine[Any, Any, Any], *, debug: bool | None = None, loop_factory: Any = None
    ) -> Any:
        main = awaitable(main)
        outer = asyncio._get_running_loop()
        if outer is None:
            return _run_alone(main, debug=debug, loop_factory=GuestLoop)
        task = asyncio.tasks._swap_current_task(outer, None)  # type: ignore[attr-defined]
        asyncio._set_running_loop(None)
        try:
            return _run_alone(main, debug=debug, loop_factory=GuestLoop)
        finally:
            asyncio._set_running_loop(outer)
            asyncio.tasks._swap_current_task(outer, task)  # type: ignore[attr-defined]
            asyncio.set_event_loop(outer)

    async def here(self, main: Any, *, debug: bool | None = None, loop_factory: Any = None) -> Any:
        """Await ``main`` in the running loop, and cancel the tasks that it leaves."""
        del debug, loop_factory
        others = asyncio.all_tasks()
        task = asyncio.ensure_future(main)
        try:
            return await task
        finally:
            left = asyncio.all_tasks() - others - {task}
            for one in left:
                one.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)


class _Rewriter(ast.NodeTransformer):
    """Replaces the calls at the top level of a program, outside functions and classes."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules, self._functions = {_MODULE}, set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules |= {a.asname for a in node.names if a.name == _MODULE and a.asname}
            elif isinstance(node, ast.ImportFrom) and node.module == _MODULE:
                names = {a.asname or a.name for a in node.names if a.name == _FUNCTION}
                self._functions |= names

    def _unchanged(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _unchanged  # noqa: N815
    visit_Lambda = visit_GeneratorExp = visit_Await = _unchanged  # noqa: N815

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr == _UNTIL:
            here = ast.copy_location(
                ast.Attribute(function.value, "complete_here", ast.Load()), function
            )
        elif self._is_run(function):
            here = ast.copy_location(ast.Attribute(function, "here", ast.Load()), function)
        else:
            return node
        call = ast.copy_location(ast.Call(here, node.args, node.keywords), node)
        return ast.copy_location(ast.Await(call), node)

    def _is_run(self, function: ast.expr) -> bool:
        match function:
            case ast.Attribute(value=ast.Name(id=module), attr="run"):
                return module in self._modules
            case ast.Name(id=name):
                return name in self._functions
            case _:
                return False


def rewrite(tree: ast.Module, source: str) -> None:
    """Replace calls of ``asyncio.run`` and ``run_until_complete``, in place."""
    if _MODULE in source or f".{_FUNCTION}(" in source or _UNTIL in source:
        _Rewriter(tree).visit(tree)


async def _to_thread(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Run the function at once: the guest has no threads."""
    return contextvars.copy_context().run(func, *args, **kwargs)


def _event_loop() -> Any:
    """The running loop, the loop that was set, or a new loop."""
    try:
        return _present_loop()
    except RuntimeError:
        loop = GuestLoop()
        asyncio.set_event_loop(loop)
        return loop


def install() -> None:
    run = Run()
    for module in (asyncio, asyncio.runners):
        vars(module)["run"] = run
    for module in (asyncio, asyncio.events):
        vars(module).update(new_event_loop=GuestLoop, get_event_loop=_event_loop)
    for module in (asyncio, asyncio.threads):
        vars(module)["to_thread"] = _to_thread
    vars(asyncio)["SelectorEventLoop"] = GuestLoop
