"""A node that takes a call over asks the tool's workers before an operator. With a virtual clock;
the functions of the workers end when the test says so.
"""

from __future__ import annotations

import asyncio

import pytest

from rookery.actors.tools.functions.remote_host import RemoteToolHost
from rookery.bus.memory.workers import MemoryToolWorkers, MemoryWorkerEndpoint, MemoryWorkerRegistry
from rookery.schemas.calls import Capability
from rookery.schemas.codec import encode_json
from rookery.schemas.surfaces import catalogue_name
from rookery.schemas.worker_protocol import (
    GRACE_MS,
    Job,
    JobAnswer,
    JobNotStarted,
    JobOutcome,
    ServedTool,
    WorkerCatalogue,
)
from tests.kernel.world import called
from tests.tools.calls.test_call_crashes import TAKEN_OVER_S
from tests.tools.tool_fixtures import SURFACE, ToolNode, ToolWorld, call, capability, operation

SEND = capability("send", idempotent=False, timeout_ms=50_000)
SENDS = catalogue_name(SURFACE, "send")


class StalledWorkers(MemoryToolWorkers):
    """A connection that delivers no message."""

    def __init__(self, floor: MemoryWorkerRegistry) -> None:
        super().__init__(floor)
        self.jobs: list[Job] = []

    async def call(self, job: Job) -> JobOutcome:
        self.jobs.append(job)
        return await asyncio.get_running_loop().create_future()


class WorkerSetup:
    """The workers of one surface, and nodes that call them."""

    def __init__(self, world: ToolWorld) -> None:
        self.world = world
        self.jobs: list[Job] = []
        self.unwanted: list[str] = []
        self.floor = world.server.realm("default").worker_registry
        self.bench = self.worker("anna")

    def worker(self, name: str) -> MemoryWorkerEndpoint:
        """Start a worker, or start it again."""
        bench = MemoryWorkerEndpoint(self.floor, SURFACE)
        catalogue = WorkerCatalogue(worker=name, tools=(ServedTool(capability=SEND),))
        self.world.run(bench.open(catalogue, self.jobs.append, self.unwanted.append))
        return bench

    def node(self, served: Capability = SEND, line: MemoryToolWorkers | None = None) -> ToolNode:
        told = {served.name: ServedTool(capability=served)}
        seen = capability(
            catalogue_name(SURFACE, served.name),
            idempotent=False,
            timeout_ms=50_000,
            input_schema=served.input_schema,
        )
        return self.world.begin(
            seen, host=RemoteToolHost(line or MemoryToolWorkers(self.floor), SURFACE, told)
        )

    def lost(self) -> ToolNode:
        """A worker executes the call, and the node that sent it is gone."""
        node = self.node()
        self.world.request_calls(call(1, SENDS, a=1))
        self.world.until(lambda: self.jobs)
        node.crash()
        return self.node()

    def answer(self) -> None:
        body = encode_json(JobAnswer(value="sent"))
        self.world.run(self.bench.reply(self.jobs[0], body))

    def leave(self) -> None:
        """Remove the worker without a message."""
        self.world.run(self.bench.close())


@pytest.fixture
def crew(world: ToolWorld) -> WorkerSetup:
    return WorkerSetup(world)


def reason(world: ToolWorld) -> str:
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    return str(world.tool_facts(1)[-1].reason)


def test_a_node_waits_for_a_worker_that_still_runs_the_call(world: ToolWorld, crew: WorkerSetup):
    successor = crew.lost()
    told = world.expect(successor, 1)
    world.pass_s(TAKEN_OVER_S)
    assert world.kinds() == ["requested", "intent_recorded"]
    crew.answer()
    world.until(told.done)
    assert world.kinds() == ["requested", "intent_recorded", "completed"]
    assert told.result().outcome.value == "sent"
    assert len(crew.jobs) == 1


def test_an_outcome_that_a_worker_reports_needs_no_operator(world: ToolWorld, crew: WorkerSetup):
    node = crew.node()
    world.request_calls(call(1, SENDS, a=1))
    world.until(lambda: crew.jobs)
    node.crash()
    crew.answer()
    crew.node()
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.kinds() == ["requested", "intent_recorded", "completed"]
    assert world.tool_facts(1)[-1].resolved_by == ""
    assert len(crew.jobs) == 1


def test_a_late_attempt_is_not_begun_after_an_operator_retried_the_call(
    world: ToolWorld, crew: WorkerSetup
):
    """The job of the first attempt is delayed in the connection meanwhile."""
    line = StalledWorkers(crew.floor)
    node = crew.node(line=line)
    world.request_calls(call(1, SENDS, a=1))
    world.until(lambda: line.jobs)
    node.crash()
    crew.node()
    why = reason(world)
    assert "it is unknown whether" in why
    assert "worker anna has not begun it in the" in why
    assert why.endswith(" s, and the tool is not idempotent")
    world.request("resolve", run_id="run-1", operation_id=operation(1), retry=True, now=True)
    world.until(lambda: crew.jobs)
    crew.answer()
    world.until(lambda: world.kinds()[-1] == "completed")
    late = world.run(MemoryToolWorkers(crew.floor).call(line.jobs[0]))
    assert late == JobNotStarted("attempt 1 of the call was cancelled", cancelled=True)
    assert [job.attempt for job in crew.jobs] == [2]


def test_an_operator_gets_the_reports_of_workers_and_the_time_limit(
    world: ToolWorld, crew: WorkerSetup
):
    """The worker with the call was restarted: it reports that it has not begun it, and no more."""
    crew.lost()
    crew.leave()
    crew.worker("anna-2")
    why = reason(world)
    assert "worker anna-2 has not begun it in the" in why
    assert "anna " not in why
    requested, _, lost = world.tool_facts(1)
    assert lost.may_act_until_ms == lost.at_ms + requested.timeout_ms + GRACE_MS


def test_the_recovery_says_that_no_worker_answered(world: ToolWorld, crew: WorkerSetup):
    crew.lost()
    crew.leave()
    assert "; no worker of its surface answers, and" in reason(world)


def test_the_recovery_names_a_worker_that_was_lost_meanwhile(world: ToolWorld, crew: WorkerSetup):
    crew.lost()
    world.pass_s(TAKEN_OVER_S)
    crew.leave()
    assert "worker anna ran it and no longer answers" in reason(world)


def test_a_worker_that_abandoned_the_call_reports_an_unknown_outcome(
    world: ToolWorld, crew: WorkerSetup
):
    crew.lost()
    world.pass_s(TAKEN_OVER_S)
    world.run(called(lambda: crew.bench.report_unknown(crew.jobs[0], "leaving")))
    assert "worker anna does not know" in reason(world)


def test_a_node_waits_for_a_call_no_longer_than_it_may_act(world: ToolWorld, crew: WorkerSetup):
    crew.lost()
    world.pass_s(40)
    assert world.kinds()[-1] == "intent_recorded"
    world.pass_s(20)
    assert "worker anna still runs it" in reason(world)
    crew.answer()
    world.until_it_cannot_act()
    asked = world.request("resolve", run_id="run-1", operation_id=operation(1), completed="seen")
    assert not asked.code


def test_a_run_that_is_cancelled_meanwhile_reaches_the_worker(world: ToolWorld, crew: WorkerSetup):
    successor = crew.lost()
    world.pass_s(TAKEN_OVER_S)
    world.cancel_run(successor)
    world.until(lambda: crew.unwanted)
    crew.answer()
    world.until(lambda: world.kinds()[-1] == "completed")


def test_a_run_that_ends_meanwhile_leaves_recovery_and_then_the_workers_outcome(
    world: ToolWorld, crew: WorkerSetup
):
    crew.lost()
    world.pass_s(TAKEN_OVER_S)
    world.end_run()
    world.until(lambda: world.kinds()[-1] == "recovery_required")
    crew.answer()
    world.until(lambda: world.kinds()[-1] == "completed")


def test_a_node_does_not_query_a_tool_whose_schema_has_changed(world: ToolWorld, crew: WorkerSetup):
    node = crew.node()
    world.request_calls(call(1, SENDS, a=1))
    world.until(lambda: crew.jobs)
    node.crash()
    crew.node(capability("send", idempotent=False, input_schema={"type": "array"}))
    assert "the workers do not serve the tool with the schema of the call" in reason(world)
