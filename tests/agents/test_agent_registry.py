"""``@agent``: what a function declares, and what a request makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from rookery.actors import agent, tool
from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.agents import RegisteredAgent, agent_tools
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.schemas.agents import AgentLimits, ConfiguredModel, ModelPrice, ModelSettings, ToolMode
from rookery.schemas.calls import WAITING_FOR_AGENT
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunLimits, RunRequest, SideEffect
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants


class Report(msgspec.Struct):
    title: str


@tool(side_effect="read")
def look(word: str) -> str:
    return word


@tool(side_effect="write")
def store(word: str) -> str:
    return word


@agent(
    model=["careful", "fast"],
    tools=["look", "run_code"],
    output=Report,
    limits={"turns": 30, "cost": 0.5},
    settings={"temperature": 0.5, "seed": 1},
)
def researcher(topic: str, depth: int = 2) -> str:
    """Looks a topic up."""
    return f"Topic: {topic}. Depth: {depth}."


@agent
def helper() -> str:
    return "You help."


@agent(tools=["look", "researcher", "desk"])
def clerk() -> str:
    return "You ask others."


@agent(tools=["clerk", "store"])
def desk() -> str:
    return "You decide."


def registered(function: object) -> RegisteredAgent:
    (found,) = ToolRegistry.of(function).agents.values()  # type: ignore[arg-type]
    assert isinstance(found, RegisteredAgent)
    return found


def priced(*aliases: str) -> Models:
    configured = ConfiguredModel(provider="scripted", price=ModelPrice(input=1.0, output=1.0))
    model: Any = object()
    known = KnownModel(configured, model)
    return Models(dict.fromkeys(aliases, known), "fast")


MODELS = priced("fast", "careful")


def test_a_function_declares_an_agent():
    found = registered(researcher)
    assert found.view.model == ("careful", "fast")
    assert found.view.description == "Looks a topic up."
    assert found.view.limits == AgentLimits(turns=30, cost_micro_usd=500_000)
    assert found.view.input_schema["required"] == ["topic"]
    assert found.view.output_schema["$defs"]["Report"]["required"] == ["title"]
    assert found.instructions({"topic": "tea"}) == "Topic: tea. Depth: 2."


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limits": {"memory_mb": 1}}, "limits of f"),
        ({"share": 2}, "share of f"),
        ({"tools": 3}, "tools of f"),
        ({"tool_mode": "none"}, "tool_mode of f"),
        ({"color": 1}, "no option color"),
        ({"name": "no name"}, "not an identifier"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], said: str):
    def f() -> str:
        return ""

    with pytest.raises(Refused, match=said):
        agent(**options)(f)


def test_an_agent_that_writes_no_instructions_fails_by_its_name():
    @agent
    def broken(n: int) -> str:
        return "" if n else 1 / 0  # type: ignore[return-value]

    with pytest.raises(Refused, match="broken wrote no instructions: ZeroDivisionError") as refused:
        registered(broken).instructions({"n": 0})
    assert refused.value.code == "AGENT_FAILED"


def test_two_agents_or_an_agent_and_a_tool_have_different_names():
    with pytest.raises(Refused, match="two agents"):
        ToolRegistry.of(helper, helper)

    @agent(name="look")
    def other() -> str:
        return ""

    registry = ToolRegistry.of(look, other)
    tools = list(ToolCatalogue.local(registry))
    with pytest.raises(Refused, match="both have a tool look"):
        ToolCatalogue([*tools, *agent_tools(registry.agents, tools)])


def test_a_call_of_an_agent_may_change_what_the_tools_below_it_may():
    registry = ToolRegistry.of(look, store, researcher, clerk, desk, helper)
    tools = {
        one.capability.name: one
        for one in agent_tools(registry.agents, ToolCatalogue.local(registry))
    }
    assert {name: one.capability.side_effect for name, one in tools.items()} == {
        "researcher": SideEffect.READ,
        "clerk": SideEffect.WRITE,  # Through the desk, which calls it, too.
        "desk": SideEffect.WRITE,
        "helper": SideEffect.EXTERNAL_SYSTEM,
    }
    assert {one.waits_for for one in tools.values()} == {WAITING_FOR_AGENT}
    assert {one.surface for one in tools.values()} == {"agents"}


def test_a_request_only_narrows_its_agent():
    request = RunRequest(
        agent="researcher",
        inputs={"topic": "tea"},
        instructions="Be brief.",
        tools=("store", "look"),
        limits=RunLimits(turns=40, tokens=100),
        settings=ModelSettings(seed=2),
    )
    MODELS.check(request, registered(researcher))
    environment = MODELS.environment(request, registered(researcher))
    assert (environment.model, environment.next_models) == ("careful", ("fast",))
    assert environment.instructions.startswith("Topic: tea. Depth: 2.\n\nBe brief.\n\nYour last")
    assert environment.tools == ("look",)
    assert environment.limits.turns == 30
    assert environment.limits.tokens == 100
    assert environment.limits.cost_micro_usd == 500_000
    assert environment.settings == ModelSettings(temperature=0.5, seed=2)
    assert environment.agent == "researcher"
    assert environment.tool_mode is ToolMode.TOOLS
    assert request.prompt_parts[0].text == '{"topic":"tea"}'


def test_an_agent_needs_no_arguments_and_no_prompt():
    request = RunRequest(agent="helper")
    MODELS.check(request, registered(helper))
    assert request.prompt_parts[0].text == "Begin."
    environment = MODELS.environment(request, registered(helper))
    assert (environment.model, environment.tools) == ("fast", UNSET)
    assert environment.follows_baseline


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (RunRequest(agent="researcher"), "TYPE_ERROR"),
        (RunRequest(agent="researcher", inputs={"topic": 3}), "TYPE_ERROR"),
        (RunRequest(agent="researcher", inputs={"topic": "", "x": 1}), "TYPE_ERROR"),
        (
            RunRequest(agent="researcher", inputs={"topic": ""}, output_schema={"type": "string"}),
            "INVALID_ARGUMENT",
        ),
        (RunRequest(agent="researcher", inputs={"topic": "x" * 70_000}), "PAYLOAD_TOO_LARGE"),
        (RunRequest(agent="researcher", inputs={"topic": ""}, code="1"), "INVALID_ARGUMENT"),
    ],
)
def test_what_an_agent_does_not_take_is_refused(request_: RunRequest, code: str):
    with pytest.raises(Refused) as refused:
        MODELS.check(request_, registered(researcher))
    assert refused.value.code == code


def test_a_cost_needs_prices_also_if_the_agent_limits_it():
    model: Any = object()
    known = KnownModel(ConfiguredModel(provider="scripted"), model)
    models = Models({"careful": known, "fast": known})
    with pytest.raises(Refused, match="has no price"):
        models.check(RunRequest(agent="researcher", inputs={"topic": ""}), registered(researcher))


class RegistryWorld(AgentWorld):
    """Its nodes have agents."""

    agents = ToolRegistry.of(helper, desk).agents

    def offer(self, request: RunRequest, session_limits: Any, session: str) -> Any:
        found = super().offer(request, session_limits, session)
        if request.agent is UNSET:
            return found
        model = self.models.environment(request, self.agents[request.agent])
        return msgspec.structs.replace(found, model=model)


def test_an_agent_drives_a_run():
    with RegistryWorld(wants(call("fetch", a=1)), says("done")) as world:
        world.begin()
        asked = world.ask("run", "s", agent="helper")
        world.until(lambda: asked.answers)
        assert result_of(asked)["result"] == "done"
        assert world.questions[0].instructions == "You help."
        assert world.questions[0].messages[0].text == "Begin."
        started = world.recorded("turn")[0]
        assert started.offer.model.agent == "helper"
