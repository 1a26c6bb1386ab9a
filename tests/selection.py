"""Which tests start something: a server, a node, a sandbox or any other process.

A test is one of them if its code leads to one of ``STARTERS``, through the functions, classes and
fixtures that it uses, of the suite and of the product. ``make check`` leaves these tests out, and
keeps the rule true: there, starting a process or a sandbox fails the test that does it.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
import wasmtime
from hypothesis import settings

__all__ = ["LONG", "MARK", "STARTERS", "QuickRun", "Selection", "examples"]

STARTERS = ("multiprocessing", "subprocess", "wasmtime")
"""Modules: nothing of ours starts anything without one of them."""
MARK = "starts_something"
"""For a test that hides what it does from the rule, by evaluating text or naming a module in it."""
LONG = "long_form"
"""For the cases of a campaign that only a full run makes: `make check` makes the others."""
_OURS = ("rookery", "tests", "conftest")
_PROCESS_EVENTS = ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system")


def examples(number: int) -> settings:
    """So many examples in a full run, and a quarter of them in a quick one, as for tests of 100."""
    return settings(max_examples=number * settings.default.max_examples // 100)


class Selection:
    """Which tests of one session start something."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}
        self._seen: list[object] = []
        """Kept, so that no id is used twice."""

    def starts_something(self, test: pytest.Function) -> bool:
        """``False`` for a test that a quick run includes."""
        if test.get_closest_marker(MARK):
            return True
        values = list(test.callspec.params.values()) if hasattr(test, "callspec") else []
        names = [value for value in values if isinstance(value, str)]
        """Fixtures with parameters ask for others by name."""
        fixtures = test.session._fixturemanager
        used = [
            fixture.func
            for name in (*test._fixtureinfo.name2fixturedefs, *names)
            for fixture in fixtures.getfixturedefs(name, test) or ()
        ]
        return any(self._leads_to_a_start(thing) for thing in (test.obj, *used, *values))

    def _leads_to_a_start(self, thing: object) -> bool:
        """Everything is looked at once: what a search without a find has passed leads nowhere."""
        if (known := self._known.get(id(thing))) is not None:
            return known
        users = {id(thing): 0}
        ahead = [thing]
        while ahead:
            one = ahead.pop()
            self._seen.append(one)
            for used in _used_by(one):
                if self._known.get(id(used)) or _home(used) in STARTERS:
                    self._note_users(id(one), users)
                    return True
                if id(used) not in users and id(used) not in self._known:
                    users[id(used)] = id(one)
                    ahead.append(used)
        self._known.update(dict.fromkeys(users, False))
        return False

    def _note_users(self, one: int, users: dict[int, int]) -> None:
        while one:
            self._known[one] = True
            one = users[one]


def _used_by(thing: object) -> Iterable[object]:
    """What the code of a thing of ours names, and what a container holds."""
    match thing:
        case staticmethod() | classmethod() | MethodType():
            return [thing.__func__]
        case property():
            return [thing.fget, thing.fset]
        case functools.partial() | functools.cached_property():
            return [thing.func]
        case list() | tuple() | set() | frozenset():
            return list(thing)
        case dict():
            return list(thing.values())
        case FunctionType():
            return [getattr(thing, "__wrapped__", None), *_named_in(thing)]
        case type():
            body = vars(thing).values() if _home(thing) in _OURS else ()
            return [*thing.__bases__, *body]
        case ModuleType():
            return []
    return [getattr(thing, "__wrapped__", None), type(thing)]


def _named_in(function: FunctionType) -> Iterator[object]:
    if _home(function) not in _OURS:
        return
    names = set(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name, sys.modules.get(name))
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value)[attribute] for attribute in names & vars(value).keys())
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # Not filled yet: nothing can be used through it either.


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _home(thing: Any) -> str:
    """The top package of the module a thing is from."""
    if isinstance(thing, ModuleType):
        module = thing.__name__
    else:
        module = getattr(thing, "__module__", None) or ""
    return "tests" if module.startswith("test_") else str(module).partition(".")[0]


class QuickRun:
    """Runs the tests that start nothing, and fails those that do."""

    def __init__(self) -> None:
        self._started: list[str] = []
        self._lock = threading.Lock()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        selection = Selection()
        chosen: list[pytest.Item] = []
        left_out: list[pytest.Item] = []
        for item in items:
            starts = isinstance(item, pytest.Function) and selection.starts_something(item)
            later = starts or item.get_closest_marker(LONG)
            (left_out if later else chosen).append(item)
        config.hook.pytest_deselected(items=left_out)
        items[:] = chosen
        sys.addaudithook(self._refuse_processes)
        wasmtime.Engine.__init__ = self._refuse_engines  # type: ignore[method-assign]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """A test fails even if it has caught the error."""
        try:
            yield
        finally:
            with self._lock:
                said, self._started = self._started, []
        if said:
            pytest.fail("\n".join(said), pytrace=False)

    def _refuse_processes(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            self._refuse(f"the process {arguments[1]}")
        elif event in _PROCESS_EVENTS:
            self._refuse(f"a process by {event}")

    def _refuse_engines(self, *arguments: object, **options: object) -> None:
        self._refuse("a sandbox")

    def _refuse(self, what: str) -> None:
        said = (
            f"`make check` starts {what}: mark the test `{MARK}`, tests/selection.py cannot see it"
        )
        with self._lock:
            self._started.append(said)
        raise PermissionError(said)
