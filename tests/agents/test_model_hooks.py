"""Hooks of runs that a model drives: of its calls, and a hook that interrupts such a run."""

from __future__ import annotations

from typing import Any

from rookery.actors.hooks import NodeHooks, modify_arguments, request_retry
from rookery.schemas.facts import hook as facts
from rookery.schemas.facts import model
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


def test_no_call_of_a_model_is_made_once_more_for_a_hook():
    hook = quick_hook("after_tool_call", lambda _: request_retry("stale"), "request_retry")
    with HookedAgentWorld(hook) as world:
        world.play_prompt()
        world.until_over()
        (rejected,) = [f for f in world.recorded("hook") if isinstance(f, facts.ResponseRejected)]
        assert "one more attempt" in rejected.reason
        assert len(world.backend.contexts) == 1
