"""``asyncio.run`` and its like, where the event loop belongs to the host.

At the top level of a program ``asyncio.run(f())`` is read as ``await f()``, so tools can be awaited
in it and the run can sleep. Inside a function it drives a loop of its own, in which time passes but
no tool answers.
"""

from __future__ import annotations

import ast
import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from guest.loop import Loop

__all__ = ["install", "rewritten"]

_MODULE, _FUNCTION, _UNTIL = "asyncio", "run", "run_until_complete"
_run_alone: Any = asyncio.run
_present_loop = asyncio.get_event_loop


class Run:
    """What ``asyncio.run`` is in a program."""

    __name__ = __qualname__ = _FUNCTION
    __module__ = "asyncio.runners"

    def __call__(
        self, main: Coroutine[Any, Any, Any], *, debug: bool | None = None, loop_factory: Any = None
    ) -> Any:
        outer = asyncio._get_running_loop()
        if outer is None:
            return _run_alone(main, debug=debug, loop_factory=Loop)
        task = asyncio.tasks._swap_current_task(outer, None)  # type: ignore[attr-defined]
        asyncio._set_running_loop(None)
        try:
            return _run_alone(main, debug=debug, loop_factory=Loop)
        finally:
            asyncio._set_running_loop(outer)
            asyncio.tasks._swap_current_task(outer, task)  # type: ignore[attr-defined]
            asyncio.set_event_loop(outer)

    async def here(self, main: Any, *, debug: bool | None = None, loop_factory: Any = None) -> Any:
        """The same in the running loop; what it leaves behind is cancelled, too."""
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
    """Replaces the calls in the program's own namespace, and no others."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules, self._functions = {_MODULE}, set[str]()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules |= {a.asname for a in node.names if a.name == _MODULE and a.asname}
            elif isinstance(node, ast.ImportFrom) and node.module == _MODULE:
                names = {a.asname or a.name for a in node.names if a.name == _FUNCTION}
                self._functions |= names

    def _keep(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _keep  # noqa: N815
    visit_Lambda = visit_GeneratorExp = visit_Await = _keep  # noqa: N815

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


def rewritten(tree: ast.Module, source: str) -> None:
    """Change the program in place, if it runs anything."""
    if _MODULE in source or f".{_FUNCTION}(" in source or _UNTIL in source:
        _Rewriter(tree).visit(tree)


async def _to_thread(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """There are no threads: it is done at once."""
    return contextvars.copy_context().run(func, *args, **kwargs)


def _event_loop() -> Any:
    """The running one, the one that was set, or a new one."""
    try:
        return _present_loop()
    except RuntimeError:
        loop = Loop()
        asyncio.set_event_loop(loop)
        return loop


def install() -> None:
    run = Run()
    for module in (asyncio, asyncio.runners):
        vars(module)["run"] = run
    for module in (asyncio, asyncio.events):
        vars(module).update(new_event_loop=Loop, get_event_loop=_event_loop)
    for module in (asyncio, asyncio.threads):
        vars(module)["to_thread"] = _to_thread
    vars(asyncio)["SelectorEventLoop"] = Loop
