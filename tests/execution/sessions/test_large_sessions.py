"""Large sessions: up to a limit a snapshot is stored, and beyond it no ended run is undone.

Kernel, executor, memory and sandbox are the real ones; the limit is low, except in the test that
shows what the real one permits.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.execution.session_cache import (
    IDLE_BYTES_MAX,
    SNAPSHOT_AFTER_INSTRUCTIONS,
    SNAPSHOT_AFTER_INSTRUCTIONS_PER_MIB,
)
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import Sandbox
from rookery.bus.ports import BLOB_BYTES_MAX
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.sandbox import SANDBOX_FACTS, SnapshotKept
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, Metrics, RunRequest, RunResult, RunStatus
from tests.execution.sessions.test_session_cache import Forgetful, engine, guest, sandbox
from tests.kernel.clients import SentRequest

__all__ = ["engine", "guest", "sandbox"]

LOW = 1 << 20
MEMORY_MB = 256
GROW = "import random\nx = [random.randbytes(1 << 20) for _ in range({})]\n"
LONG = "for n in range(6_000_000): pass\n"
"""A program that takes too long to repeat, so its session is stored."""


class Holding(Forgetful):
    """A node that stores sessions up to this size."""

    def __init__(self, sandbox: Sandbox, snapshot_bytes_max: int = LOW) -> None:
        super().__init__(sandbox)
        self.snapshot_bytes_max = snapshot_bytes_max
        self.resting_bytes_max = IDLE_BYTES_MAX

    def offer(self, request: RunRequest, session_limits: Any, session: str) -> RunEnvironment:
        offer = super().offer(request, session_limits, session)
        limits = replace(offer.limits, memory_mb=MEMORY_MB, cpu_ms=60_000)
        return replace(offer, limits=limits)

    @property
    def kept(self) -> list[SnapshotKept]:
        codec: FactCodec[Any] = FactCodec(SANDBOX_FACTS)
        return [fact for one in self.stored("sandbox", "s") for fact in codec.decode(one.body)]


def said(asked: SentRequest) -> RunAnswer:
    return msgspec.json.decode(asked.answers[-1].body, type=RunAnswer)


def test_a_session_that_cannot_be_stored_stays_in_memory_after_its_run(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING), Holding(sandbox) as world:
        world.begin()
        assert world.value("s", f"{GROW.format(2)}{LONG}len(x)") == 2
        world.until(lambda: caplog.records)
        assert world.value("s", "len(x)") == 2
        assert [record.code for record in caplog.records] == ["PAYLOAD_TOO_LARGE"]
        assert world.remembered == {"s"}
        assert world.kept == []


def test_a_run_is_valid_although_its_snapshot_is_too_large(sandbox: Sandbox):
    with Holding(sandbox) as world:
        world.begin()
        answer = said(
            world.request("run", "s", code=f"{GROW.format(2)}len(x)", return_snapshot=True)
        )
        assert (answer.status, answer.result, answer.snapshot_id) == (RunStatus.OK, 2, None)
        (diagnostic,) = answer.diagnostics
        assert diagnostic.code == "PAYLOAD_TOO_LARGE"
        assert str(LOW) in diagnostic.message
        assert world.value("s", "len(x)") == 2


def test_a_run_that_cannot_park_ends_with_a_reason(sandbox: Sandbox):
    with Holding(sandbox) as world:
        world.backend.lost = True
        world.begin()
        assert world.value("s", "y = 1\ny") == 1
        answer = said(world.request("run", "s", code=f"{GROW.format(2)}await send(a=1)"))
        assert answer.error is not None
        assert (answer.status, answer.error.code) == ("validation_error", "PAYLOAD_TOO_LARGE")
        assert str(LOW) in answer.error.message
        assert world.rest is None
        assert world.value("s", "[y, 'x' in globals()]") == [1, False]


def test_a_session_larger_than_the_largest_value_is_stored_and_restored(sandbox: Sandbox):
    megabytes = (BLOB_BYTES_MAX >> 20) + 1
    with Holding(sandbox, SNAPSHOT_BYTES_MAX) as world:
        world.begin()
        assert world.value("s", f"{GROW.format(megabytes)}len(x)") == megabytes
        world.until(lambda: world.kept)
        assert world.kept[0].size_bytes > BLOB_BYTES_MAX
        world.run(world.sessions.evict("s"))
        assert world.value("s", "[len(x), len(x[-1])]") == [megabytes, 1 << 20]


def test_a_large_session_is_stored_if_repeating_it_takes_as_long(sandbox: Sandbox):
    with Holding(sandbox, SNAPSHOT_BYTES_MAX) as world:
        world.begin()
        world.value("s", f"{GROW.format(20)}{LONG}")
        world.until(lambda: world.kept)
        run = said(world.request("run", "s", code="1"))
        view = ActiveRunView(
            run_id=run.run_id, runs_before=1, offer=world.offer(RunRequest(), None, "")
        )

        def ends_after(instructions: int) -> None:
            ended = RunResult(metrics=Metrics(instructions=instructions))
            world.run(world.sessions.on_run_ended("s", view, ended, kept=True))

        ends_after(SNAPSHOT_AFTER_INSTRUCTIONS)
        assert len(world.kept) == 1
        ends_after(20 * SNAPSHOT_AFTER_INSTRUCTIONS_PER_MIB)
        world.until(lambda: len(world.kept) == 2)
