"""Observers: hooks that see what is committed, from bounded queues, while no run waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.hooks import NodeHooks, deny, request_retry
from rookery.actors.hooks.observers import HookObservers, ObserverCounts
from rookery.schemas.calls import ToolFault
from rookery.schemas.facts import approval, model, tool, turn
from rookery.schemas.hooks import HookMode
from rookery.schemas.run import CallStatus, RunResult
from rookery.schemas.seed.hook import HookFailurePolicy, HookPoint
from rookery.schemas.seed.hook_invocation import HookInput, ObserveOnlyResponse
from rookery.schemas.seed.hook_spec import (
    HookOverflowPolicy,
    HookPrivacyPolicy,
    HookQueueConfig,
    HookTimeoutPolicy,
    NonBlockingHook,
)
from tests.hooks.hook_fixtures import registration, spec
from tests.hooks.test_node_hooks import ENVIRONMENT
from tests.wire.test_facts import example

CALL, RUN, APPROVAL = (
    HookPoint.AFTER_TOOL_CALL,
    HookPoint.AFTER_RUN_TERMINAL,
    HookPoint.AFTER_APPROVAL_DECISION,
)
DROP, SUMMARIZE, FAIL = HookOverflowPolicy


def observer(point: HookPoint, overflow: HookOverflowPolicy = DROP, **changes: Any) -> Any:
    """An observer with room for four events, one of which is kept for ends."""
    queue = HookQueueConfig(capacity=4, terminal_reserve=1)
    made = spec(
        point,
        hook_id="watcher",
        failure=HookFailurePolicy.FAIL_OPEN_OBSERVE_ONLY,
        execution=NonBlockingHook(queue=queue, overflow=overflow),
        privacy=HookPrivacyPolicy.CONTENT_CAPTURE_ALLOWED,
    )
    when = changes.pop("when", "")
    return registration(replace(made, **changes), when=when)


class Watched:
    """A node with one observer, whose hook answers when the test lets it."""

    def __init__(self, one: Any) -> None:
        self.executor_ref = one.spec.executor_ref
        self.seen: list[HookInput] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.answers: list[Any] = []
        hooks = NodeHooks()
        hooks.follow({"watcher": one}, {})
        hooks.executors.register(self)
        self.hooks, self.observers = hooks, HookObservers(hooks, lambda: 0)

    async def invoke(self, hook_input: HookInput) -> Any:
        await self.go.wait()
        self.seen.append(hook_input)
        if self.error:
            raise self.error
        return self.answers.pop() if self.answers else ObserveOnlyResponse()

    async def finish(self) -> list[str]:
        """What the hook has seen in the end."""
        self.go.set()
        for _ in range(200):
            await asyncio.sleep(0)
        return [one.view.redacted_summary for one in self.seen]

    @property
    def counts(self) -> ObserverCounts:
        return self.observers.counts["watcher"]


def returned(number: int, value: Any = None) -> tool.Completed:
    return tool.Completed(
        operation_id=f"r.{number}",
        run="r",
        session="s",
        value=value,
        response_digest="",
        duration_ms=number,
    )


def decided(number: int) -> Any:
    fact = example(approval.Answered)
    return replace(fact, approval_id=f"s.{number}", operation_id=str(number), run="r", session="s")


def ended() -> turn.Completed:
    return replace(example(turn.Completed), run="r", session="s", result=RunResult(result=7))


def of(one: Any, *batches: Sequence[Any], **fields: Any) -> tuple[list[str], Watched]:
    async def scenario() -> tuple[list[str], Watched]:
        watched = Watched(one)
        watched.error = fields.get("error")
        for batch in batches:
            watched.observers.on_committed(batch)
        await asyncio.sleep(0)  # The first event is being observed.
        for batch in fields.get("later", ()):
            watched.observers.on_committed(batch)
        return await watched.finish(), watched

    return asyncio.run(scenario())


def test_an_observer_sees_what_is_committed_at_its_point():
    fault = ToolFault(code="X", message="no")
    failed = tool.Failed(
        operation_id="r.2",
        run="r",
        session="s",
        error=fault,
        status=CallStatus.ERROR,
        duration_ms=1,
    )
    requested = replace(example(tool.Requested), operation_id="r.1", session="s", name="pay")
    batch = [requested, returned(1, "paid"), failed, ended()]
    seen, watched = of(observer(CALL), batch)
    assert seen == ["pay: call r.1 returned a value in 1 ms", "call r.2 failed: X"]
    assert watched.seen[0].view.content == "paid"
    assert watched.counts == ObserverCounts(invoked=2)
    assert of(observer(RUN), batch)[0] == ["run r completed with status ok"]
    assert of(observer(APPROVAL), [decided(1)])[0] == ["approval s.1: x"]
    answered = replace(example(model.Answered), run="r", session="s", step=2, duration_ms=7)
    seen, watched = of(observer(HookPoint.AFTER_MODEL_CALL, when='result != ""'), [answered])
    assert seen == ["answer 2 of a model, after 7 ms"]


def test_a_condition_that_is_false_skips_an_event_and_one_that_is_undecided_does_not():
    batch = [returned(1, 5), returned(2, 50), returned(3, "text")]
    seen, _ = of(observer(CALL, when="result > 10"), batch)
    assert seen == [f"call r.{number} returned a value in {number} ms" for number in (2, 3)]


@pytest.mark.parametrize(
    ("overflow", "seen", "dropped", "failed"),
    [
        (DROP, [1, 2, 3, 4], 3, 0),
        (FAIL, [1, 2, 3, 4], 0, 3),
        (SUMMARIZE, [1, 2, 3, 4, "2 events skipped", 7], 2, 0),
    ],
)
def test_a_full_queue_does_what_its_policy_says(
    overflow: HookOverflowPolicy, seen: list[Any], dropped: int, failed: int
):
    """One event is being observed, three of the others wait in the room that is not reserved."""
    later = [[decided(number)] for number in range(2, 8)]
    found, watched = of(observer(APPROVAL, overflow), [decided(1)], later=later)
    words = [one if isinstance(one, str) else f"approval s.{one}: x" for one in seen]
    assert found == words
    assert (watched.counts.dropped, watched.counts.failed) == (dropped, failed)
    assert watched.counts.queued == 0


def test_a_part_of_the_queue_is_reserved_for_what_ends():
    later = [[returned(number)] for number in range(2, 8)]
    found, watched = of(observer(CALL), [returned(1)], later=later)
    assert (len(found), watched.counts.dropped) == (5, 2)


def test_an_observer_that_fails_or_takes_too_long_is_counted_and_stops_nothing():
    found, watched = of(observer(CALL), [returned(1), returned(2)], error=ValueError("broken"))
    assert (len(found), watched.counts.failed, watched.counts.invoked) == (2, 2, 0)

    async def slow() -> ObserverCounts:
        watched = Watched(observer(CALL, timeout=HookTimeoutPolicy(timeout_ms=1)))
        watched.observers.on_committed([returned(1)])
        while not watched.counts.failed:
            await asyncio.sleep(0.001)
        return watched.counts

    assert asyncio.run(slow()).invoked == 0


@pytest.mark.parametrize("failure", list(HookFailurePolicy))
def test_an_observer_that_answers_anything_else_is_judged_as_any_hook_and_counted(
    failure: HookFailurePolicy,
):
    """By the matrix of its point and by its rights: it may only observe."""
    answers = [deny("no", "too late"), request_retry("again"), "garbage"]

    async def scenario() -> ObserverCounts:
        watched = Watched(observer(CALL, failure=failure))
        watched.answers = answers
        watched.observers.on_committed([returned(number) for number in range(3)])
        assert len(await watched.finish()) == 3
        return watched.counts

    assert asyncio.run(scenario()) == ObserverCounts(failed=3)


def test_no_run_is_bound_to_an_observer():
    watched = NodeHooks()
    watched.follow({"watcher": observer(CALL)}, {})
    assert watched.pin(ENVIRONMENT) == NodeHooks().pin(ENVIRONMENT)


def test_an_observer_that_is_off_or_removed_sees_nothing_more():
    async def scenario() -> None:
        watched = Watched(observer(CALL))
        watched.go.set()
        watched.observers.on_committed([returned(1)])
        await watched.finish()
        off = replace(observer(CALL), mode=HookMode.OFF)
        for hooks in ({"watcher": off}, {}):
            watched.hooks.follow(hooks, {})
            watched.observers.on_committed([returned(2)])
            assert len(await watched.finish()) == 1
            assert watched.observers.counts == {}

    asyncio.run(scenario())
