"""A node's cache of idle sessions is bounded.

Kernel, executor, cache and sandbox are the real ones, with capacity for a few sessions; the realm
is in memory, where a test can set the bound directly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
import wasmtime

from rookery.actors.execution.driver import SandboxDriver
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.session_cache import SessionCache
from rookery.actors.execution.snapshot_keeper import SnapshotKeeper, SnapshotRemover
from rookery.actors.kernel.executors.asks import AskActor
from rookery.actors.kernel.runtime.kernel import Kernel
from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python.build import GuestCache, cache_folder
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.actors.tools.catalogue.catalogue import CatalogueTool, ToolCatalogue
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, Language, RunRequest, SessionLimits
from tests.execution.scripted_driver import ScriptedWorld
from tests.kernel.clients import SentRequest
from tests.tools.tool_fixtures import SURFACE, ToolNode, capability

KEY = bytes(32)
LIVE_MAX = 2
RESTING_BYTES_MAX = 4 << 20
SESSIONS = [f"s{number}" for number in range(16)]
MUCH = "x = list(range(10_000))\nfor n in range(500_000): pass\nme = {!r}\nme"
"""A program that takes too long to repeat: its session is stored as a snapshot."""


@pytest.fixture(scope="module")
def engine() -> wasmtime.Engine:
    return make_engine()


@pytest.fixture(scope="module")
def guest(engine: wasmtime.Engine) -> PythonGuest:
    return PythonGuest(engine, GuestCache(cache_folder(os.environ)))


@pytest.fixture
def sandbox(engine: wasmtime.Engine, guest: PythonGuest) -> Iterator[Sandbox]:
    with Sandbox(engine, [guest], KEY, live_max=LIVE_MAX, ready=1) as sandbox:
        yield sandbox


class Forgetful(ScriptedWorld):
    """Nodes that execute programs and cache few sessions."""

    resting_bytes_max = RESTING_BYTES_MAX
    snapshot_bytes_max = SNAPSHOT_BYTES_MAX

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__(threads=True)
        self.sandbox = sandbox
        offered = (capability("send", idempotent=False), capability("long", timeout_ms=60_000))
        self.visible = ToolCatalogue(CatalogueTool.of(SURFACE, o, awaited=True) for o in offered)

    def offer(self, request: RunRequest, session_limits: Any, session: str) -> RunEnvironment:
        return RunEnvironment(
            language=Language.PYTHON,
            build=self.sandbox.builds[Language.PYTHON],
            seed="00",
            limits=SessionLimits(wall_ms=60_000),
            tools=tuple(tool.available for tool in self.visible),
        )

    def mind(self, reader: RunHistoryReader, blobs: Blobs, ask: AskActor) -> Mapping[str, Any]:
        self.remover = SnapshotRemover(reader, blobs, lambda _: True, self.now_ms)
        keeper = SnapshotKeeper(
            self.sandbox,
            reader,
            blobs,
            ask,
            self.now_ms,
            snapshot_bytes_max=self.snapshot_bytes_max,
        )
        memory = self.sessions = SessionCache(
            self.sandbox,
            reader,
            blobs,
            keeper,
            self.remover,
            resting_bytes_max=self.resting_bytes_max,
        )
        return {
            "session_cache": memory,
            "driver": lambda: SandboxDriver(self.sandbox),
            "eviction_candidates": memory.eviction_candidates,
        }

    def _bind(self, node: ToolNode, kernel: Kernel, *parts: Any) -> Any:
        bound = super()._bind(node, kernel, *parts)
        kernel.register_handlers(self.remover.handlers)
        return bound

    sessions: SessionCache
    """The node's session cache."""
    remover: SnapshotRemover

    def value(self, session: str, code: str) -> Any:
        return result(self.request("run", session, code=code))

    @property
    def remembered(self) -> set[str]:
        return {meta.id for meta in self.sandbox.sessions()}

    def crowd(self) -> None:
        """Run programs in many sessions, until the cache is within its bound. The cache is checked
        at the end of a run, and the last session may still be on its way there."""
        for session in SESSIONS:
            assert self.value(session, MUCH.format(session)) == session
        for _ in range(50):
            if self.sandbox.suspended_bytes <= RESTING_BYTES_MAX:
                return
            assert self.value(SESSIONS[-1], "len(x)") == 10_000
        raise AssertionError(f"{self.sandbox.suspended_bytes} bytes are remembered")


def result(asked: SentRequest) -> Any:
    said = msgspec.json.decode(asked.answers[-1].body, type=RunAnswer)
    assert said.error is None, said.error
    return said.result


def test_the_sessions_idle_for_longest_are_evicted_and_continue_unchanged(sandbox: Sandbox):
    with Forgetful(sandbox) as world:
        world.begin()
        world.crowd()
        assert not world.remembered.issuperset(SESSIONS)
        assert world.remembered.issuperset(SESSIONS[-LIVE_MAX:])
        for session in SESSIONS:
            assert world.value(session, "[me, len(x)]") == [session, 10_000]


def test_a_run_in_progress_keeps_its_session_in_memory(sandbox: Sandbox):
    """The session is idle while its run waits, and has been idle longest."""
    with Forgetful(sandbox) as world:
        world.backend.hold = True
        world.begin()
        going = world.ask("run", "going", code=f"{MUCH.format('going')}\nawait long(a=1)\nme")
        world.until(lambda: world.backend.running["long"])
        world.crowd()
        assert "going" in world.remembered
        world.backend.hold = False
        world.until(lambda: going.answers)
        assert result(going) == "going"
        assert world.backend.executions.total() == 1


def test_a_parked_run_continues_whatever_was_evicted_meanwhile(sandbox: Sandbox):
    with Forgetful(sandbox) as world:
        world.backend.lost = True
        world.begin()
        parked = world.request("run", "s", code=f"{MUCH.format('parked')}\nawait send(a=1)\nme")
        assert world.rest
        world.backend.lost = False
        world.crowd()
        (lost,) = world.rest.waits_for
        world.ask("resolve", "s", run_id=world.rest.run, operation_id=lost, retry=True, now=True)
        world.until(lambda: len(parked.answers) > 1)
        assert result(parked) == "parked"
        assert world.value("s", "[me, len(x)]") == ["parked", 10_000]
