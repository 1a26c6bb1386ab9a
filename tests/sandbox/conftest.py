"""Fixtures: one guest a test process, built once for the user; sandboxes and sessions."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.fibers import obstacle
from rookery.actors.sandbox.runtime.wasm import Engine, make_engine
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.run import Language
from tests.sandbox.modes import HAS_FIBERS
from tests.sandbox.session_fixture import KEY, Stage

if obstacle():
    collect_ignore = ["runtime/test_fibers.py", "runtime/test_waiting_on_fibers.py"]


@pytest.fixture(scope="session")
def cache() -> GuestCache:
    return GuestCache(cache_folder(os.environ))


@pytest.fixture(scope="session")
def engine() -> Engine:
    return make_engine(has_fibers=HAS_FIBERS)


@pytest.fixture(scope="session")
def guest(engine: Engine, cache: GuestCache) -> PythonGuest:
    return PythonGuest(engine, cache)


@pytest.fixture(scope="session")
def sandbox(engine: Engine, guest: PythonGuest) -> Iterator[Sandbox]:
    """A sandbox shared by tests, each with its own sessions."""
    with Sandbox(engine, [guest], KEY) as sandbox:
        yield sandbox


@pytest.fixture
def stage(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A session for one test."""
    stage = Stage(sandbox, f"s{abs(hash(request.node.nodeid))}")
    yield stage
    stage.end()


@pytest.fixture(scope="session")
def javascript_guest(engine: Engine, cache: GuestCache) -> JavaScriptGuest:
    return JavaScriptGuest(engine, cache)


@pytest.fixture(scope="session")
def ts_sandbox(engine: Engine, javascript_guest: JavaScriptGuest) -> Iterator[Sandbox]:
    with Sandbox(engine, [javascript_guest], KEY) as sandbox:
        yield sandbox


@pytest.fixture
def ts(ts_sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A TypeScript session for one test."""
    name = f"t{abs(hash(request.node.nodeid))}"
    stage = Stage(ts_sandbox, name, language=Language.TYPESCRIPT)
    yield stage
    stage.end()
