"""One guest a test process, built once for the user; sandboxes and sessions as tests want them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import wasmtime

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.guest_build import GuestCache, cache_folder
from rookery.actors.sandbox.python_guest import PythonGuest
from rookery.actors.sandbox.wasm import make_engine
from tests.sandbox.stage import KEY, Stage


@pytest.fixture(scope="session")
def cache() -> GuestCache:
    return GuestCache(cache_folder(os.environ))


@pytest.fixture(scope="session")
def engine() -> wasmtime.Engine:
    return make_engine()


@pytest.fixture(scope="session")
def guest(engine: wasmtime.Engine, cache: GuestCache) -> PythonGuest:
    return PythonGuest(engine, cache)


@pytest.fixture(scope="session")
def sandbox(engine: wasmtime.Engine, guest: PythonGuest) -> Iterator[Sandbox]:
    """Shared by tests that leave each other's sessions alone."""
    with Sandbox(engine, [guest], KEY) as sandbox:
        yield sandbox


@pytest.fixture
def stage(sandbox: Sandbox, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A session of its own for every test."""
    stage = Stage(sandbox, f"s{abs(hash(request.node.nodeid))}")
    yield stage
    stage.end()
