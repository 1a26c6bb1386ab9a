"""What hooks may do to a call together, to its approval and to the record: what they said."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.approvals.state import ApprovalRequestState, ApprovalSettings
from rookery.actors.hooks import (
    NodeHooks,
    add_input,
    change_approval,
    deny,
    modify_arguments,
    stop_completion,
    stop_run,
)
from rookery.actors.hooks.changes import call_verdict
from rookery.actors.hooks.points import Hooked, HookPoints
from rookery.actors.messages import ActiveRunView
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.builtin.peers import peer_tools
from rookery.actors.tools.calls import RequestPolicy
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.schemas.calls import ApprovalTerms
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import hook as facts
from rookery.schemas.run import RunRequest, SideEffect
from rookery.schemas.seed.policy_decisions import RiskClass
from tests.hooks.hook_worlds import HookedWorld, played, quick_hook
from tests.hooks.test_node_hooks import ENVIRONMENT
from tests.tools.tool_fixtures import CAPABILITIES, call, node_tools

FIRST = "run_starting"
CALL = "before_tool_call"

# --- order, and approvals -------------------------------------------------------------------------


@pytest.mark.parametrize("orders", list(itertools.permutations((10, 20, 30))))
def test_a_judge_sees_what_is_executed_whatever_the_order_or_is_refused(
    orders: tuple[int, int, int],
):
    seen = []

    def judge(call: Any) -> Any:
        seen.append(call.view.content)
        return deny("odd", "an odd number") if call.view.content["b"] % 2 else None

    def double(call: Any) -> Any:
        return modify_arguments({"b": 2 * call.view.content.get("b", 1)}, "doubled")

    def add_one(call: Any) -> Any:
        return modify_arguments({"b": call.view.content.get("b", 1) + 1}, "one more")

    doubling, adding, judging = (
        quick_hook(CALL, double, "modify_tool_request", name="double", order=orders[0]),
        quick_hook(CALL, add_one, "modify_tool_request", name="add-one", order=orders[1]),
        quick_hook(CALL, judge, "deny", name="judge", order=orders[2]),
    )
    if orders[2] != 30:
        with pytest.raises(Refused, match="changes what judge has judged"):
            NodeHooks([judging, doubling, adding])
        return
    with HookedWorld(judging, adding, doubling) as world:
        played(world, "return_two_results")
        executed = [context.kwargs for context in world.backend.contexts]
        if orders[0] < orders[1]:  # 2 * 1 + 1 is odd.
            assert seen == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
            assert executed == []
        else:
            assert seen == executed == [{"a": 1, "b": 4}, {"a": 2, "b": 4}]


def test_hooks_make_the_terms_of_an_approval_stricter_and_never_weaker():
    def terms(name: str, **more: Any) -> Any:
        answer = change_approval(f"by {name}", **more)
        right = "modify_approval_request"
        return quick_hook("before_approval_request", lambda _: answer, right, name=name)

    long = terms("a", timeout_ms=60_000, dispatchers=["inbox", "mail"], risk="High")
    short = terms("b", timeout_ms=90_000, dispatchers=["mail", "chat"], risk="Low")
    hooks = NodeHooks([long, short])
    tools = node_tools(*CAPABILITIES)
    made = call(1, "guarded", a=1)
    view = ActiveRunView(run_id="run-1", offer=hooks.pin(ENVIRONMENT))
    points = HookPoints(hooks, tools, lambda: 0, "s", view)

    async def hooked() -> Hooked:
        return await points.before_tool_calls([made])

    verdict = call_verdict(tools.require("guarded"), made, asyncio.run(hooked()).facts)
    assert verdict.terms == ApprovalTerms(
        timeout_ms=60_000, dispatchers=("mail",), risk_class=RiskClass.HIGH
    )
    assert verdict.changed_by == "changed by hook a: by a; changed by hook b: by b"
    settings = ApprovalSettings(dispatchers=("inbox", "mail"), timeout_ms=30_000)
    assert settings.timeout_under(verdict.terms) == 30_000
    assert settings.allowed_under(verdict.terms, settings.dispatchers) == ("mail",)
    asked = ApprovalRequestState(
        **dict.fromkeys(("approval_id", "operation_id", "run", "tool", "surface", "policy"), "x"),
        **dict.fromkeys(("schema_digest", "request_digest", "arguments_ref", "summary"), "x"),
        **dict.fromkeys(("generation", "attempt", "asked_at_ms"), 1),
        side_effect=SideEffect.READ,
        idempotent=True,
        terms=verdict.terms,
    )
    assert asked.risk_class is RiskClass.HIGH


def test_a_hook_denies_a_call_before_an_approver_is_asked():
    hook = quick_hook("before_approval_request", lambda _: deny("night", "not at night"), "deny")
    with HookedWorld(hook) as world:
        played(world, "pay_guarded")
        assert world.end.result.result == "PERMISSION_DENIED"
        assert world.kinds("tool") == ["refused"]


# --- forged ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "right", "response"),
    [
        (CALL, "deny", deny("x" * 129, "no")),
        (CALL, "deny", deny("", "no")),
        (FIRST, "stop_run", stop_run("x" * 129, "no")),
        (
            "before_run_complete",
            "stop_completion_with_repair_needed",
            stop_completion("x" * 129, "no"),
        ),
        (
            "before_approval_request",
            "modify_approval_request",
            change_approval("fewer", dispatchers=["x" * 200_000]),
        ),
    ],
)
def test_a_response_whose_words_are_too_long_counts_as_a_denial(
    point: str, right: str, response: Any
):
    script = "pay_guarded" if point == "before_approval_request" else "return_two_results"
    with HookedWorld(quick_hook(point, lambda _: response, right)) as world:
        played(world, script)
        said = world.recorded("hook")
        rejected = next(fact for fact in said if isinstance(fact, facts.ResponseRejected))
        assert len(rejected.reason) < 200
        assert not any(isinstance(fact, facts.ResponseDecided) for fact in said)


def test_the_hooks_of_approvals_see_what_is_sent_to_a_peer_that_needs_one():
    denied = deny("night", "not at night")
    hooks = NodeHooks([quick_hook("before_approval_request", lambda _: denied, "deny")])
    tools = ToolCatalogue(peer_tools(ToolRegistry.of()))
    view = ActiveRunView(run_id="run-1", offer=hooks.pin(ENVIRONMENT))
    points = HookPoints(
        hooks,
        tools,
        lambda: 0,
        "s",
        view,
        requests=RequestPolicy(peer_gate=lambda address: address.endswith("@west")),
    )

    def faults(to: str) -> Any:
        made = call(1, "send_message", to=to, body="hello")
        said = asyncio.run(points.before_tool_calls([made])).facts
        return call_verdict(tools.require("send_message"), made, said).fault

    assert faults("coder@west").code == "PERMISSION_DENIED"
    assert faults("coder") is UNSET


def test_the_policy_of_a_run_is_needed_when_a_call_is_made_and_not_before():
    """It is loaded with the tools of the run, by a node that may have another one itself."""

    def not_loaded(_: object) -> Any:
        raise Failed("CONFLICT", "the policy of the run is not loaded any more")

    hooks = NodeHooks([quick_hook("before_approval_request", lambda _: None, "deny")])
    view = ActiveRunView(run_id="run-1", offer=hooks.pin(ENVIRONMENT))
    points = HookPoints(
        hooks, node_tools(*CAPABILITIES), lambda: 0, "s", view, requests=RequestPolicy(not_loaded)
    )
    assert asyncio.run(points.run_cancel_requested()) == ()


def forged_inputs(fact: Any) -> Any:
    return replace(fact, change=add_input("for", 1, "a keyword"))


def forged_class(fact: Any) -> Any:
    return replace(fact, change=deny("no", "of another point"))


def forged_ending(fact: Any) -> Any:
    return replace(fact, change=stop_run("no", "the run goes on all the same"))


@pytest.mark.parametrize("forge", [forged_inputs, forged_class, forged_ending])
def test_a_turn_refuses_a_response_that_is_not_the_one_of_its_record(forge: Any):
    class Forger(HookPoints):
        async def run_starting(self, request: RunRequest) -> tuple[RunRequest, Hooked]:
            request, hooked = await super().run_starting(request)
            first, *others = hooked.facts
            return request, hooked._replace(facts=(forge(first), *others))

    hook = quick_hook(FIRST, lambda _: add_input("tone", 1, "a tone"), "inject_context")
    with HookedWorld(hook) as world:
        world.hook_points = Forger
        played(world, "return_two_results")
        assert not world.backend.contexts
        assert not world.recorded("hook")
        assert world.end.result.error.code == "GUARD_REJECTED"


def test_a_turn_refuses_a_change_without_its_three_facts():
    class Forger(HookPoints):
        async def run_starting(self, request: RunRequest) -> tuple[RunRequest, Hooked]:
            request, hooked = await super().run_starting(request)
            return request, hooked._replace(facts=hooked.facts[:2])

    hook = quick_hook(FIRST, lambda _: add_input("tone", 1, "a tone"), "inject_context")
    with HookedWorld(hook) as world:
        world.hook_points = Forger
        played(world, "return_two_results")
        assert not world.recorded("hook")
        assert world.end.result.error.code == "GUARD_REJECTED"
