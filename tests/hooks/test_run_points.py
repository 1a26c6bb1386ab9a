"""What hooks change at the points of a run and of its calls: on record, whenever a node dies."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.hooks import (
    NodeHooks,
    add_input,
    deny,
    modify_arguments,
    report_cleanup,
    request_retry,
    rewrite_result,
    rule_hook,
    stop_completion,
    stop_run,
)
from rookery.actors.hooks.points.records import journal_records
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import tool, turn
from rookery.schemas.run import RunStatus
from tests.execution.scripted_driver import SESSION, ScriptedWorld
from tests.execution.test_scripted_driver import settle_calls
from tests.hooks.hook_worlds import CALLS, DECIDED, HookedWorld, dead, played, quick_hook

FIRST = "run_starting"
CALL, RESULT = "before_tool_call", "after_tool_call"
LAST = "before_run_complete"


def once(answer: Any) -> Any:
    """Answers so the first time."""
    left = [answer]
    return lambda _: left.pop() if left else None


# --- what every point costs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "answer", "right", "changes"),
    [
        (FIRST, add_input("tone", "kind", "be kind"), "inject_context", 1),
        (CALL, modify_arguments({"b": 7}, "with a seven"), "modify_tool_request", CALLS),
        (RESULT, rewrite_result("other", "another"), "rewrite_tool_result", CALLS),
        (LAST, None, "request_retry", 0),
        ("before_approval_request", None, "deny", 0),
        ("on_run_cancel_requested", None, "request_cleanup_repair", 0),
    ],
)
def test_hooks_that_answer_within_the_tick_add_no_message_at_any_point(
    point: str, answer: Any, right: str, changes: int
):
    changing = quick_hook(point, lambda _: answer, right)
    with ScriptedWorld() as plain, HookedWorld(changing) as hooked:
        assert played(hooked) == played(plain)
        assert len(hooked.recorded("hook")) == 3 * changes
        assert hooked.end.result.status is RunStatus.OK


# --- run_starting ---------------------------------------------------------------------------------


def test_a_run_gets_the_inputs_of_its_hooks_in_their_order_and_their_records_say_so():
    first = quick_hook(FIRST, lambda _: add_input("a", (1, 2), "a"), "inject_context", name="a")

    def second(call: Any) -> Any:
        return add_input("b", list(call.view.content["inputs"]), "b")

    with HookedWorld(first, quick_hook(FIRST, second, "inject_context", name="b")) as world:
        played(world, "answer")
        assert world.memory is not None
        assert world.memory.inputs == [{"a": [1, 2], "b": ["a"]}]
        recorded = world.recorded("hook")
    for decided, intended, resulted in zip(*[iter(recorded)] * 3, strict=True):
        assert len(journal_records(decided, intended, resulted)) == 3


@pytest.mark.parametrize("later", range(2, 4))
def test_a_node_may_die_with_any_message_and_the_program_has_the_inputs_that_are_on_record(
    later: int,
):
    numbers = iter(range(100))
    hook = quick_hook(FIRST, lambda _: add_input("n", next(numbers), "a number"), "inject_context")
    with HookedWorld(hook) as world:
        world.begin()
        world.play("return_two_results")
        world.kill_after(later)
        settle_calls(world)
        (decided,) = [fact for fact in world.recorded("hook") if isinstance(fact, DECIDED)]
        assert world.memory is not None
        assert world.memory.inputs[-1] == {"n": decided.change.payload[0].value}
        assert world.end.result.result == ["done"] * 2


def test_a_hook_ends_a_run_before_its_first_step():
    hook = quick_hook(FIRST, lambda _: stop_run("budget", "the budget is used up"), "stop_run")
    with HookedWorld(hook) as world:
        played(world, "return_results")
        assert world.memory is not None
        assert world.memory.inputs == []
        end = world.end
        assert (end.result.status, end.result.error.code) == ("permission_denied", "HOOK_DENIED")
        assert "the budget is used up (hook.budget, by hook at-run-starting)" in end.error
        assert end.cause_kind == "hook_denied"
        assert not world.recorded("tool")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("tone", "has an input tone already"), ("for", "'for'"), ("__x", "'__x'"), ("", "''")],
)
def test_an_input_that_a_run_may_not_have_ends_it(name: str, reason: str):
    first = quick_hook(FIRST, lambda _: add_input("tone", 1, "a"), "inject_context", name="a")
    other = quick_hook(FIRST, lambda _: add_input(name, 2, "b"), "inject_context", name="b")
    with HookedWorld(first, other) as world:
        played(world, "answer")
        assert world.end.result.error.code == "HOOK_DENIED"
        assert reason in world.end.result.error.message
        (rejected,) = [f for f in world.recorded("hook") if isinstance(f, facts.ResponseRejected)]
        assert rejected.hook_id.as_str() == "b"


# --- before_run_complete --------------------------------------------------------------------------


def test_a_run_that_may_not_complete_fails_and_only_the_record_has_its_result():
    hook = quick_hook(
        LAST,
        lambda _: stop_completion("ledger", "does not balance"),
        "stop_completion_with_repair_needed",
    )
    with HookedWorld(hook) as world:
        played(world, "return_two_results")
        end = world.end
        assert (end.result.result, end.withheld.result) == (None, ["done"] * 2)
        assert end.result.error.code == "HOOK_REPAIR_NEEDED"
        assert not end.kept


def test_a_program_that_only_read_is_executed_once_more_and_no_more():
    seen = []

    def retry(call: Any) -> Any:
        seen.append(call.view.content)
        return request_retry("once more")

    with HookedWorld(quick_hook(LAST, retry, "request_retry")) as world:
        played(world, "return_two_results")
        assert seen == [["done"] * 2] * 2
        error = world.end.result.error
        assert error.code == "HOOK_REPAIR_NEEDED"
        assert "executed once more already" in error.message
        requested = [fact for fact in world.recorded("tool") if isinstance(fact, tool.Requested)]
        assert len({fact.operation_id for fact in requested}) == len(requested) == 4


@pytest.mark.parametrize("later", range(2, 12))
def test_a_node_may_die_with_any_message_of_a_program_that_is_executed_twice(later: int):
    with HookedWorld(quick_hook(LAST, once(request_retry("once more")), "request_retry")) as world:
        world.begin()
        world.play("return_two_results")
        world.kill_after(later)
        settle_calls(world)
        assert world.end.result.result == ["done"] * 2
        retries = [fact for fact in world.recorded("hook") if isinstance(fact, DECIDED)]
        assert len(retries) <= 1
        requested = [fact for fact in world.recorded("tool") if isinstance(fact, tool.Requested)]
        assert len(requested) == 2 + 2 * len(retries)


def test_a_program_that_has_acted_is_not_executed_once_more():
    hook = quick_hook(LAST, lambda _: request_retry("once more"), "request_retry")
    with HookedWorld(hook) as world:
        played(world, "pay_once")
        error = world.end.result.error
        assert error.code == "HOOK_REPAIR_NEEDED"
        assert "its call of pay may have had an effect" in error.message
        assert world.end.withheld.result == "done"


# --- a call that is made once more ----------------------------------------------------------------


def test_an_idempotent_call_is_made_once_more_under_one_key_and_the_record_has_both_outcomes():
    hook = quick_hook(RESULT, once(request_retry("stale")), "request_retry")
    with HookedWorld(hook) as world:
        played(world, "return_two_results")
        assert world.end.result.result == ["done"] * 2
        keys = [context.idempotency_key for context in world.backend.contexts]
        assert keys[0] == keys[1] != keys[2]
        kinds = world.kinds("tool")
        assert kinds.count("completed") == 3
        (retried,) = [f for f in world.recorded("tool") if isinstance(f, tool.RetryAllowed)]
        assert (retried.resolved_by, retried.by_hook) == ("at-after-tool-call", True)


@pytest.mark.parametrize(
    ("script", "answers", "reason"),
    [
        ("pay_once", [request_retry("again")], "pay is not idempotent, so it is called once"),
        ("return_two_results", [request_retry("again")] * 2, "a hook may ask for one more attempt"),
    ],
)
def test_a_call_is_not_made_once_more_twice_or_if_it_is_not_idempotent(
    script: str, answers: list[Any], reason: str
):
    hook = quick_hook(RESULT, lambda _: answers.pop() if answers else None, "request_retry")
    with HookedWorld(hook) as world:
        played(world, script)
        (rejected,) = [f for f in world.recorded("hook") if isinstance(f, facts.ResponseRejected)]
        assert reason in rejected.reason
        if script == "return_two_results":
            assert world.end.result.result == ["PERMISSION_DENIED", "done"]


@pytest.mark.parametrize("later", range(2, 11))
def test_a_node_may_die_with_any_message_of_a_call_that_is_made_once_more(later: int):
    hook = quick_hook(RESULT, once(request_retry("stale")), "request_retry")
    with HookedWorld(hook) as world:
        world.begin()
        world.play("return_two_results")
        world.kill_after(later)
        settle_calls(world)
        assert world.end.result.result == ["done"] * 2
        retries = [f for f in world.recorded("tool") if isinstance(f, tool.RetryAllowed)]
        decided = [fact for fact in world.recorded("hook") if isinstance(fact, DECIDED)]
        assert len(decided) == sum(fact.by_hook is True for fact in retries) <= 1


# --- interruptions --------------------------------------------------------------------------------


@pytest.mark.parametrize("point", [FIRST, CALL, RESULT, LAST])
@pytest.mark.parametrize("moves", [False, True])
def test_a_hook_that_is_gone_parks_its_run_which_continues_once_it_is_resumed(
    point: str, moves: bool
):
    healthy = []

    def answer(call: Any) -> Any:
        return None if healthy else dead(call)

    hook = quick_hook(point, answer, failure="interrupt_run")
    with HookedWorld(hook) as world:
        world.begin()
        world.play("return_two_results")
        world.until(lambda: world.rest)
        world.settle()
        rest = world.rest
        assert rest is not None
        assert (rest.code, rest.hook) == (
            "HOOK_INTERRUPTED",
            hook.registration.spec.hook_id.as_str(),
        )
        (noted,) = world.recorded("hook")
        assert (noted.parks, noted.error) == (True, "nobody answers")
        world.pass_s(20)
        assert world.rest == rest, "only a resumption continues it"
        if moves:
            world.nodes[-1].crash()
            world.begin()
            world.pass_s(20)
        healthy.append(True)
        world.resume("another")
        assert world.rest == rest
        world.resume(str(rest.hook))
        world.until_over()
        assert world.end.result.result == ["done"] * 2
        assert len(world.backend.contexts) == 2, "no call was made twice"


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_whose_hook_no_node_has_waits_for_it_and_then_parks_or_is_refused(begun: bool):
    """It is refused if it has not begun; and if the hook comes in time, it goes on."""
    with HookedWorld(quick_hook(CALL, lambda _: None)) as world:
        complete = world.node_hooks
        world.begin()
        world.play("pause_between")
        calls = world.backend.contexts
        world.until(lambda: calls if begun else world.recorded())
        world.settle()
        world.node_hooks = NodeHooks((), missing_wait_s=30)
        world.nodes[-1].crash()
        world.begin()
        world.pass_s(25)
        assert (world.rest, world.closes) == (None, [])
        if not begun:
            world.until_over()
            assert world.end.result.error.code == "HOOK_EXECUTOR_MISSING"
            assert "no node that owns the session has hook at-before-tool-call" in world.end.error
            return
        world.until(lambda: world.rest)
        rest = world.rest
        assert rest is not None
        assert (rest.code, rest.hook) == ("HOOK_EXECUTOR_MISSING", "at-before-tool-call")
        world.settle()
        world.resume(str(rest.hook))
        world.pass_s(5)
        world.node_hooks.follow(complete.own, {})
        for one in complete.own.values():
            found = complete.executors.resolve(one.spec.executor_ref)
            assert found is not None
            world.node_hooks.executors.register(found)
        world.until_over()
        assert world.end.result.result == ["done"] * 2
        assert len(calls) == 2, "no call was made twice"


@pytest.mark.parametrize("moves", [False, True])
def test_a_run_that_goes_on_has_the_hooks_of_now_on_record(moves: bool):
    """Also when the node dies once more, which reads them from the record."""
    healthy = []

    def answer(call: Any) -> Any:
        return None if healthy else dead(call)

    denied = deny("late", "too late")
    late = rule_hook("late", CALL, when="args.a == 2", then=denied, mode="enforce")
    with HookedWorld(quick_hook(CALL, answer, failure="interrupt_run")) as world:
        world.begin()
        world.play("return_two_results")
        world.until(lambda: world.rest)
        world.settle()
        (started,) = [fact for fact in world.recorded() if isinstance(fact, turn.Started)]
        world.node_hooks.follow({"late": late.registration}, {})
        healthy.append(True)
        world.resume("at-before-tool-call")
        if moves:
            world.kill_after(len(world.stored("", SESSION)) + 1)
        world.until_over()
        (unparked,) = [fact for fact in world.recorded() if isinstance(fact, turn.Unparked)]
        assert [pin.hook_id for pin in unparked.hooks] == ["at-before-tool-call", "late"]
        assert unparked.package_fingerprint != started.offer.package_fingerprint
        assert world.end.result.result == ["done", "PERMISSION_DENIED"]


def test_a_run_that_a_hook_has_interrupted_can_be_cancelled():
    with HookedWorld(quick_hook(CALL, dead, failure="interrupt_run")) as world:
        world.begin()
        world.play("return_two_results")
        world.until(lambda: world.rest)
        world.ask("cancel", SESSION, run_id=world.runs[-1], now=True)
        world.until_over()
        assert isinstance(world.end, turn.Cancelled)
        assert not world.backend.contexts


# --- cancellations --------------------------------------------------------------------------------


@pytest.mark.parametrize("next_run", [False, True])
def test_what_a_cancelled_run_leaves_behind_is_on_record_behind_its_end(next_run: bool):
    hook = quick_hook(
        "on_run_cancel_requested", lambda _: report_cleanup("a half"), "request_cleanup_repair"
    )
    with HookedWorld(hook) as world:
        world.begin()
        world.play("ponder")
        if next_run:
            world.play("answer")
        world.until(lambda: "started" in world.kinds())
        world.ask("cancel", SESSION, run_id=world.runs[0], now=True)
        world.until_over(1 + next_run)
        world.pass_s(1)
        decided, *_ = world.recorded("hook")
        assert (decided.run, len(world.recorded("hook"))) == (world.runs[0], 3)
        end = next(fact for fact in world.recorded() if isinstance(fact, turn.Cancelled))
        assert int(decided.id.rpartition(".")[2]) > int(end.id.rpartition(".")[2])
        assert end.result.error.code == "CANCELLED"


def test_a_hook_that_fails_changes_no_cancellation():
    hook = quick_hook("on_run_cancel_requested", dead, "request_cleanup_repair", failure="fail_run")
    with HookedWorld(hook) as world:
        world.begin()
        world.play("ponder")
        world.until(lambda: "started" in world.kinds())
        world.ask("cancel", SESSION, run_id=world.runs[0], now=True)
        world.until_over()
        world.pass_s(1)
        assert isinstance(world.end, turn.Cancelled)
        (noted,) = world.recorded("hook")
        assert (noted.status, noted.error) == ("failed_closed", "nobody answers")
