"""Hooks of runs that a model drives: of its calls, and a hook that interrupts such a run."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.hooks import NodeHooks, modify_arguments, request_retry, stop_run
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import model, turn
from tests.agents.agent_world import AgentWorld, call, says, wants
from tests.execution.scripted_driver import SESSION
from tests.hooks.hook_worlds import dead, quick_hook


class HookedAgentWorld(AgentWorld):
    """The same, with the hooks of the test."""

    def __init__(self, *hooks: Any) -> None:
        super().__init__(wants(call("fetch", a=1)), says("done"))
        self.node_hooks = NodeHooks(hooks)

    def play_prompt(self) -> None:
        self.begin()
        self.ask("run", SESSION, prompt="fetch it")


def test_a_call_of_a_model_is_executed_as_its_hook_has_changed_it():
    changing = quick_hook(
        "before_tool_call", lambda _: modify_arguments({"b": 7}, "a seven"), "modify_tool_request"
    )
    with HookedAgentWorld(changing) as world:
        world.play_prompt()
        world.until_over()
        assert [context.kwargs for context in world.backend.contexts] == [{"a": 1, "b": 7}]


def test_a_hook_that_is_gone_parks_the_run_of_a_model_which_is_asked_again_on_record():
    healthy: list[bool] = []
    hook = quick_hook(
        "before_tool_call", lambda c: None if healthy else dead(c), failure="interrupt_run"
    )
    with HookedAgentWorld(hook) as world:
        world.play_prompt()
        world.until(lambda: world.rest)
        rest = world.rest
        assert rest is not None
        assert rest.code == "HOOK_INTERRUPTED"
        healthy.append(True)
        world.resume(str(rest.hook))
        world.until_over()
        assert len(world.backend.contexts) == 1
        assert [len(world.model_facts(kind)) for kind in (model.Lost, model.Requested)] == [1, 3]


ASK, ANSWER = "before_model_call", "after_model_call"


@pytest.mark.parametrize(("point", "asked"), [(ASK, 0), (ANSWER, 1)])
def test_a_hook_ends_a_run_before_its_model_is_asked_or_behind_the_answer_that_is_on_record(
    point: str, asked: int
):
    seen: list[Any] = []

    def stop(call: Any) -> Any:
        seen.append(call.view)
        return stop_run("secret", "no secrets to this model")

    with HookedAgentWorld(quick_hook(point, stop, "stop_run", when='name == "fast"')) as world:
        world.play_prompt()
        world.until_over()
        end = [fact for fact in world.recorded() if isinstance(fact, turn.Failed)][-1]
        assert (end.result.error.code, end.cause_kind) == ("HOOK_DENIED", "hook_denied")
        assert "no secrets to this model (hook.secret" in end.result.error.message
        assert len(world.questions) == asked
        kinds = [len(world.model_facts(kind)) for kind in (model.Requested, model.Answered)]
        assert kinds == [asked, asked]
        assert [type(fact) for fact in world.recorded("hook")] == [
            *(facts.ResponseDecided, facts.MutationIntended, facts.MutationResulted)
        ]
        assert not world.recorded("tool")
        (view,) = seen
        assert view.content[0]["role"] == ("assistant" if asked else "user")
        world.check_questions()


@pytest.mark.parametrize("point", [ASK, ANSWER])
@pytest.mark.parametrize(
    ("failure", "code"), [("deny", "HOOK_DENIED"), ("fail_run", "HOOK_FAILED")]
)
def test_a_hook_that_fails_at_a_model_ends_the_run_as_its_policy_says(
    point: str, failure: str, code: str
):
    with HookedAgentWorld(quick_hook(point, dead, "stop_run", failure=failure)) as world:
        world.play_prompt()
        world.until_over()
        end = [fact for fact in world.recorded() if isinstance(fact, turn.Failed)][-1]
        assert end.result.error.code == code
        assert len(world.questions) == (point == ANSWER)
        world.check_questions()


@pytest.mark.parametrize("point", [ASK, ANSWER])
def test_a_hook_that_is_gone_parks_the_run_of_a_model_which_goes_on_once_it_is_back(point: str):
    healthy: list[bool] = []
    hook = quick_hook(point, lambda c: None if healthy else dead(c), failure="interrupt_run")
    with HookedAgentWorld(hook) as world:
        world.play_prompt()
        world.until(lambda: world.rest)
        world.settle()
        rest = world.rest
        assert rest is not None
        assert rest.code == "HOOK_INTERRUPTED"
        healthy.append(True)
        world.resume(str(rest.hook))
        world.until_over()
        assert len(world.backend.contexts) == 1
        end = [fact for fact in world.recorded() if isinstance(fact, turn.Completed)][-1]
        assert end.result.result == "done"
        assert len(world.model_facts(model.Lost)) == (point == ANSWER)
        world.check_questions()


def test_hooks_of_a_model_that_answer_within_the_tick_add_no_message():
    quiet = [quick_hook(point, lambda _: None, "stop_run") for point in (ASK, ANSWER)]
    with HookedAgentWorld() as plain, HookedAgentWorld(*quiet) as hooked:
        for world in (plain, hooked):
            world.play_prompt()
            world.until_over()
        assert [*map(len, hooked.messages())] == [*map(len, plain.messages())]


def test_no_call_of_a_model_is_made_once_more_for_a_hook():
    hook = quick_hook("after_tool_call", lambda _: request_retry("stale"), "request_retry")
    with HookedAgentWorld(hook) as world:
        world.play_prompt()
        world.until_over()
        (rejected,) = [f for f in world.recorded("hook") if isinstance(f, facts.ResponseRejected)]
        assert "one more attempt" in rejected.reason
        assert len(world.backend.contexts) == 1
