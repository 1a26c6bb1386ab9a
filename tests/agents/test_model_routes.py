"""Which model is asked: the route of the request, or the model that is set for the session."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from rookery.schemas.facts import model
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants
from tests.agents.test_model_driver import check_lawful
from tests.agents.test_model_retries import PATIENCE_S, PROVIDER, failing
from tests.execution.scripted_driver import SESSION

ROUTE = ["fast", "careful"]


def asked(world: AgentWorld) -> list[tuple[str, Any, Any]]:
    """Model, place in the route and epoch of each question."""
    found = world.model_facts(model.Requested)
    return [(fact.model, fact.route_index, fact.topology_epoch) for fact in found]


@pytest.mark.parametrize(
    ("failures", "questions"),
    [([{"kind": "InvalidModel"}], 2), ([PROVIDER] * 4, 5)],
    ids=["fatal", "retries spent"],
)
def test_a_route_advances_where_a_model_cannot_answer_and_stays_there(
    failures: list[dict[str, Any]], questions: int
):
    answers = (*map(failing, failures), wants(call("fetch", a=1)), says("done"))
    with AgentWorld(*answers) as world:
        world.by_question = True
        world.begin()
        request = world.prompt(model=ROUTE)
        world.until(lambda: world.closes, PATIENCE_S)
        assert result_of(request)["result"] == "done"
        first, second = ("fast", UNSET, UNSET), ("careful", 1, UNSET)
        assert asked(world) == [first] * (questions - 1) + [second] * 2
        attempts = [(fact.step, fact.attempt) for fact in world.model_facts(model.Requested)]
        assert attempts == [*((1, n + 1) for n in range(questions)), (2, 1)]
        world.check_questions()
        check_lawful(world)


def test_a_refusal_is_no_reason_to_ask_another_model():
    with AgentWorld(failing({"code": "MODEL_REFUSED"}), says("no")) as world:
        world.by_question = True
        world.begin()
        request = world.prompt(model=ROUTE)
        world.until(lambda: world.closes)
        assert result_of(request)["error"]["code"] == "MODEL_REFUSED"
        assert len(world.questions) == 1


def test_the_model_of_a_session_takes_effect_at_the_next_question():
    with AgentWorld(wants(call("fetch", a=1)), says("done")) as world:
        world.begin()
        world.hold = True
        world.prompt()
        world.until(lambda: world.questions)
        for name in ("fast", "careful"):
            params = {"model": name, "realtime_capable": False}
            assert not world.request("turns", SESSION, input="set_baseline", params=params).code
        world.hold = False
        world.until(lambda: world.closes)
        world.settle()
        assert asked(world) == [("fast", UNSET, UNSET), ("careful", UNSET, 2)]
        world.prompt(model="fast")
        world.until(lambda: len(world.closes) == 2)
        assert [name for name, _, _ in asked(world)[2:]] == ["fast", "fast"], "the request says so"
        world.prompt()
        world.until(lambda: len(world.closes) == 3)
        assert [name for name, _, _ in asked(world)[4:]] == ["careful", "careful"]
        check_lawful(world)


def test_a_model_that_no_node_knows_ends_the_run():
    with AgentWorld(says("done")) as world:
        world.begin()
        world.answered()
        params = {"model": "nowhere", "realtime_capable": False}
        world.request("turns", SESSION, input="set_baseline", params=params)
        request = world.prompt()
        world.until(lambda: request.answers)
        assert result_of(request)["error"]["code"] == "MODEL_UNKNOWN"
