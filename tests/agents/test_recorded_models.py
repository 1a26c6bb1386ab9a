"""A recorded model answers what a past run was answered, without a network; else it says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rookery.actors.execution.agents import open_models
from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.actors.execution.agents.scripted_model import ScriptedModel, read_script
from rookery.actors.execution.models import recorded_answers
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.agents import ConfiguredModel
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.facts import model
from tests.agents.agent_world import AgentWorld, result_of, says
from tests.agents.test_compaction import LONG, SmallWorld
from tests.agents.test_model_driver import TALK, another_node, bodies, rows
from tests.agents.test_prompts import QUESTION, fields, prompting_node
from tests.execution.realm_fixture import Serving
from tests.execution.scripted_driver import SESSION
from tests.nodes import rookery_here

CASES: dict[str, tuple[type[AgentWorld], tuple[dict[str, Any], ...]]] = {
    "text": (AgentWorld, (says("hello", usage={"input_tokens": 7, "output_tokens": 2}),)),
    "talk": (AgentWorld, TALK),
    "summary": (SmallWorld, LONG),
    "fails": (AgentWorld, ({"failure": {"message": "no credit", "status": 402}},)),
    "busy": (AgentWorld, ({"failure": {"message": "busy", "retryable": True}},)),
}


def recording_of(world: AgentWorld) -> bytes:
    bus = world.nodes[-1].bus
    made = world.run(recorded_answers(bus.journal, bus.blobs, SESSION, world.runs[-1]))
    return encode_json(made)


def answer_by(world: AgentWorld, recording: bytes, *others: str) -> None:
    """Let the nodes of the world ask a recorded model, then others."""
    script = read_script(recording, "a recording")
    configured = world.models.get("fast")
    recorded = KnownModel(configured, ScriptedModel(script))
    known = {"recorded": recorded, "fast": KnownModel(configured, world.models.model("fast"))}
    world.models = Models(known, ("recorded", *others))


def play(world: AgentWorld, text: str = "go on") -> dict[str, Any]:
    asked = world.prompt(text)
    world.until(lambda: world.closes, 300.0)
    world.settle()
    return result_of(asked)


@pytest.mark.parametrize("name", CASES)
def test_the_same_prompt_elsewhere_leads_to_the_same_run(name: str):
    kind, answers = CASES[name]
    with kind(*answers) as world:
        world.begin()
        result, walked, asked = play(world), rows(world), bodies(world)
        recording = recording_of(world)
    with kind(says("never asked")) as world:
        answer_by(world, recording)
        world.begin()
        again = play(world)
        assert world.questions == []
        assert (again["result"], again["usage"]) == (result["result"], result["usage"])
        if name != "busy":  # A question that was asked in vain fails at once.
            assert rows(world) == walked
            assert again["error"] == result["error"]
        requested = world.model_facts(model.Requested)
        assert len({fact.step for fact in requested}) == len(asked)


def test_a_node_may_die_and_the_recorded_answers_are_the_same():
    with AgentWorld(*TALK) as world:
        world.begin()
        play(world)
        recording = recording_of(world)
    with AgentWorld(says("never asked")) as world:
        answer_by(world, recording)
        world.begin()
        world.prompt()
        world.kill_after(5)
        another_node(world)
        world.until(lambda: world.closes, 300.0)
        world.settle()
        assert "done" in str(world.recorded()[-2].result)


@pytest.mark.parametrize("others", [(), ("fast",)], ids=["alone", "before another"])
def test_another_question_has_no_answer_and_is_the_next_models(others: tuple[str, ...]):
    with AgentWorld(says("hello")) as world:
        world.begin()
        play(world)
        recording = recording_of(world)
    with AgentWorld(says("asked anew")) as world:
        answer_by(world, recording, *others)
        world.begin()
        found = play(world, "something else")
        if others:
            assert found["result"] == "asked anew"
        else:
            assert found["error"]["code"] == "MODEL_FAILED"
            assert "no answer for model step 1" in found["error"]["message"]
            assert "something else" in found["error"]["message"]


def test_a_recorded_model_needs_its_recording(tmp_path: Path):
    with pytest.raises(Refused, match="has no script") as refused:
        open_models({"m": ConfiguredModel(provider="recorded")}, "m", tmp_path)
    assert "rookery runs answers RUN FILE" in refused.value.hint


def test_answers_are_written_by_a_command_and_asked_for_without_the_first_model(
    server: EmbeddedServer, tmp_path: Path
):
    with prompting_node(server, tmp_path, "recording") as node:
        serving = Serving(server, node, "recording", tmp_path, Role.OPERATOR)
        answer = fields(serving.rookery("run", "--prompt", QUESTION))
        written = fields(serving.rookery("runs", "answers", answer["run_id"], "trip.json"))
        assert written == {"file": "trip.json", "answers": 2}
        program = fields(serving.rookery("run", "-e", "1"))
        refused = serving.rookery("runs", "answers", program["run_id"], "none.json")
        assert "INVALID_ARGUMENT" in refused.out
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "trip.json").rename(elsewhere / "trip.json")
    config = '[models]\ndefault = "trip"\n[models.trip]\nprovider = "recorded"\n'
    config += 'script = "trip.json"\n'
    (elsewhere / "rookery.toml").write_text(config, encoding="utf-8")
    said = rookery_here(
        elsewhere,
        *("run", "--prompt", QUESTION, "--tools", "rookery.ops.examples.tools:registry"),
        *("--store", str(elsewhere / "store")),
    )
    assert said.code == 0, said.err
    assert "Tea costs 3." in said.out
