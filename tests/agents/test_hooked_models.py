"""Hooks judge the calls of a model as they do those of a program, and their results."""

from __future__ import annotations

import msgspec
import pytest

from rookery.schemas.facts import model
from tests.agents.agent_world import AgentWorld, call, says, wants
from tests.agents.test_model_driver import check_lawful, rows
from tests.execution.scripted_driver import SESSION
from tests.execution.test_scripted_driver import settle_calls
from tests.hooks.test_hook_messages import add_hundred, quick, rewrite

ANSWERS = (wants(call("fetch", a=1), call("fetch", a=2)), wants(call("fetch", a=3)), says("done"))


class HookedAgentWorld(AgentWorld):
    hooks = (quick(add_hundred), quick(rewrite))


def contents(world: AgentWorld) -> list[str]:
    """The results in the last question."""
    messages = world.questions[-1].messages
    return [
        part.content for message in messages for part in message.parts if hasattr(part, "content")
    ]


def test_a_model_gets_what_hooks_make_of_results_and_its_calls_run_as_they_change_them():
    with HookedAgentWorld(*ANSWERS) as world:
        world.begin()
        assert world.answered()["result"] == "done"
        assert contents(world) == ['"done!"'] * 3
        assert sorted(ctx.kwargs["a"] for ctx in world.backend.contexts) == [101, 102, 103]
        before = len(world.stored("", SESSION))
        world.answered()
        world.settle()
        messages = world.messages()[before:-1]
        assert len(messages) == 2 * 2 + 3, "hooks that answer within the tick add none"


@pytest.mark.parametrize("moment", range(1, 9))
def test_a_resumed_model_is_shown_what_an_undisturbed_one_is_shown(moment: int):
    with HookedAgentWorld(*ANSWERS) as calm:
        calm.begin()
        calm.answered()
        calm_rows = rows(calm)
    with HookedAgentWorld(*ANSWERS) as world:
        world.begin()
        world.prompt()
        world.kill_after(moment)
        settle_calls(world)
        assert rows(world) == calm_rows
        assert contents(world) == ['"done!"'] * 3
        heads = {(fact.step, fact.head) for fact in world.model_facts(model.Requested)}
        assert len(heads) == 3, "a repeated question is the same"
        world.check_questions()
        check_lawful(world)
        assert msgspec.json.encode(world.questions[-1].messages).count(b"done!") == 3
