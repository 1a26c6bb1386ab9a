"""Hooks in messages: they cost none, they survive the death of a node, and forged ones are refused.

The hooks answer on the loop, within the tick that an outcome waits for the step after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from rookery.actors.execution.driver import Finished
from rookery.actors.hooks import hook, modify_arguments, rewrite_result
from rookery.actors.hooks.authoring import LocalHook
from rookery.actors.hooks.points import Hooked, HookPoints
from rookery.actors.hooks.points.records import journal_records
from rookery.actors.tools.authoring import HOOK_ATTRIBUTE
from rookery.schemas.calls import RequestedCall
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_json
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import tool, turn
from rookery.schemas.ids import HookId
from rookery.schemas.run import RunResult
from rookery.schemas.seed.hook_invocation import HookInput, HookResponse
from tests.execution.driver_scripts import SCRIPTS, Script, wants
from tests.execution.scripted_driver import SESSION, ScriptedWorld
from tests.execution.test_scripted_driver import settle_calls

CALLS = 10


class QuickHook(LocalHook):
    """A hook whose function the loop calls."""

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        answer: HookResponse = self._answer(hook_input)
        return answer


@hook(
    "before_tool_call",
    rights=["modify_tool_request"],
    mode="enforce",
    sees="content_capture_allowed",
    timeout_ms=5_000,
)
def add_hundred(call: HookInput) -> Any:
    return modify_arguments({"a": call.view.content["a"] + 100}, "a hundred more")


def quick(function: Any) -> LocalHook:
    made: LocalHook = getattr(function, HOOK_ATTRIBUTE)
    return QuickHook(made.registration, function)


class HookedWorld(ScriptedWorld):
    hooks = (quick(add_hundred),)


def played(world: ScriptedWorld, script: str = "call_ten_times") -> int:
    """How many messages the script's run has."""
    world.begin()
    world.play(script)
    world.until_over()
    return len(world.stored("", SESSION))


def test_hooks_that_answer_within_the_tick_add_no_message_to_a_run():
    with ScriptedWorld() as plain, HookedWorld() as hooked:
        assert played(hooked) == played(plain)
        assert len(hooked.recorded("hook")) == 3 * CALLS
        assert [ctx.kwargs for ctx in hooked.backend.contexts] == [
            {"a": number + 100} for number in range(1, CALLS + 1)
        ]


def test_the_facts_of_a_change_are_the_records_the_coordinator_appended():
    with HookedWorld() as world:
        played(world)
        recorded = world.recorded("hook")
    numbers = []
    for decided, intended, resulted in zip(*[iter(recorded)] * 3, strict=True):
        records = journal_records(decided, intended, resulted)
        numbers += [record.journal_seq for record in records]
        first = records[0].record_id.removesuffix(".response")
        assert [record.record_id for record in records] == [
            f"{first}.{what}" for what in ("response", "intent", "result")
        ]
        assert records[2].source.id.as_str() == f"agent.{SESSION}"
        assert encode_json(records[1].payload).startswith(b'{"type":"effect_intent"')
    assert numbers == list(range(1, 3 * CALLS + 1)), "of one run, without a hole"


@pytest.mark.parametrize("later", range(3, 14))
def test_a_node_may_die_with_any_message_and_what_is_executed_is_on_record(later: int):
    with HookedWorld() as world:
        world.begin()
        world.play("call_ten_times")
        world.kill_after(later)
        settle_calls(world)
        requested = {
            fact.idempotency_key: fact
            for fact in world.recorded("tool")
            if isinstance(fact, tool.Requested)
        }
        assert len(requested) == CALLS
        for ctx in world.backend.contexts:
            fact = requested[ctx.idempotency_key]
            assert fact.arguments.kwargs == ctx.kwargs == {"a": fact.number + 100}
            assert fact.executed_digest == digest_json(fact.arguments)
            assert fact.request_digest == digest_json({"args": [], "kwargs": {"a": fact.number}})
        changed = [fact for fact in world.recorded("hook") if isinstance(fact, _DECIDED)]
        assert [fact.operation_id for fact in changed] == [*requested], "each call once"


_DECIDED = facts.ResponseDecided


# --- results --------------------------------------------------------------------------------------


@hook(
    "after_tool_call",
    rights=["rewrite_tool_result"],
    mode="enforce",
    sees="content_capture_allowed",
    timeout_ms=5_000,
)
def rewrite(call: HookInput) -> Any:
    return rewrite_result(f"{call.view.content}!", "louder")


def return_results(run: str) -> Script:
    """Ten calls, one after the other, whose values are the result."""
    del run
    values = []
    for number in range(1, CALLS + 1):
        results = yield wants(number)
        values.append(results[number].value)
    yield Finished(RunResult(result=values), kept=True)


class RewritingWorld(ScriptedWorld):
    hooks = (quick(rewrite),)
    scripts: Mapping[str, Callable[[str], Script]] = {**SCRIPTS, "return_results": return_results}


def test_rewritten_results_add_no_message_to_a_run():
    with ScriptedWorld() as plain, RewritingWorld() as hooked:
        assert played(hooked) == played(plain)
        assert len(hooked.recorded("hook")) == 3 * CALLS


@pytest.mark.parametrize("later", range(3, 14))
def test_a_node_may_die_with_any_message_and_the_program_gets_what_is_on_record(later: int):
    with RewritingWorld() as world:
        world.begin()
        world.play("return_results")
        world.kill_after(later)
        settle_calls(world)
        (end,) = [fact for fact in world.recorded() if isinstance(fact, turn.Completed)]
        assert end.result.result == ["done!"] * CALLS
        changed = [fact for fact in world.recorded("hook") if isinstance(fact, _DECIDED)]
        assert len({fact.operation_id for fact in changed}) == len(changed) == CALLS


class GatedHook(QuickHook):
    """A hook that answers once its gate is open."""

    is_open = False

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        while not self.is_open:
            await asyncio.sleep(0.005)
        return await super().invoke(hook_input)


def test_a_result_whose_hook_had_not_answered_when_its_node_died_is_judged_by_the_next_node():
    gated = GatedHook(quick(rewrite).registration, rewrite)

    class GatedWorld(RewritingWorld):
        hooks = (gated,)

    with GatedWorld() as world:
        world.begin()
        world.play("return_results")
        world.until(lambda: "completed" in world.kinds("tool"))
        assert not world.recorded("hook"), "the outcome is recorded alone"
        world.nodes[-1].crash()
        gated.is_open = True
        world.begin()
        settle_calls(world)
        (end,) = [fact for fact in world.recorded() if isinstance(fact, turn.Completed)]
        assert end.result.result == ["done!"] * CALLS


# --- forged ---------------------------------------------------------------------------------------


class ForgedDigest(HookPoints):
    async def before_tool_calls(self, calls: Sequence[RequestedCall]) -> Hooked:
        hooked = await super().before_tool_calls(calls)
        return hooked._replace(executed=dict.fromkeys(hooked.executed, "0" * 64))


class ForgedHook(HookPoints):
    async def before_tool_calls(self, calls: Sequence[RequestedCall]) -> Hooked:
        hooked = await super().before_tool_calls(calls)
        forged = [msgspec.structs.replace(fact, hook_id=HookId("other")) for fact in hooked.facts]
        return hooked._replace(facts=tuple(forged))


class ForgedChange(HookPoints):
    async def before_tool_calls(self, calls: Sequence[RequestedCall]) -> Hooked:
        hooked = await super().before_tool_calls(calls)
        other = modify_arguments({"a": 666}, "another change")
        forged = [
            msgspec.structs.replace(fact, change=other) if isinstance(fact, _DECIDED) else fact
            for fact in hooked.facts
        ]
        return hooked._replace(facts=tuple(forged))


@pytest.mark.parametrize("forger", [ForgedDigest, ForgedHook, ForgedChange])
def test_the_turn_applies_only_what_the_recorded_changes_of_its_own_hooks_give(
    forger: type[HookPoints],
):
    with HookedWorld() as world:
        world.hook_points = forger
        played(world)
        assert not world.backend.contexts
        assert not world.recorded("hook")
        (failed,) = [fact for fact in world.recorded() if type(fact).__name__ == "Failed"]
        assert failed.result.error.code == "GUARD_REJECTED"
