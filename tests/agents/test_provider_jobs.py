"""A provider works on an answer as a job: its id is on record, and any node fetches it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.execution.agents import open_models
from rookery.actors.execution.agents.model_port import (
    ModelFailure,
    ModelJobGone,
    ModelPending,
    ModelQuestion,
)
from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.actors.execution.agents.scripted_model import ScriptedAnswer, ScriptedModel
from rookery.actors.hooks import NodeHooks, stop_run
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.agents import ConfiguredModel
from rookery.schemas.errors import Refused
from rookery.schemas.facts import model, turn
from rookery.schemas.machines.turn import LlmFailureKind
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants
from tests.agents.model_kills import faults, kill_at
from tests.agents.test_model_driver import another_node, check_lawful
from tests.agents.test_model_replays import replay
from tests.agents.test_model_retries import PATIENCE_S
from tests.execution.scripted_driver import SESSION
from tests.execution.test_scripted_driver import settle_calls
from tests.hooks.hook_worlds import quick_hook

BUSY = ModelFailure("busy", kind=LlmFailureKind.NETWORK_TIMEOUT)


class JobWorld(AgentWorld):
    """Its model answers by jobs, each of which is done when it is fetched so often."""

    def __init__(self, *answers: dict[str, Any], fetches: int = 2) -> None:
        super().__init__(*answers)
        self.posts: list[tuple[str, int]] = []
        """The questions that were asked, by run and step."""
        self.fetched: Counter[str] = Counter()
        self.gone: set[str] = set()
        self.busy: list[ModelFailure] = []
        """How the next fetches fail."""

        async def answer(question: ModelQuestion) -> ScriptedAnswer:
            if not question.job:
                self.posts.append((question.run_id, question.step))
                raise ModelPending(f"job_{len(self.posts)}")
            if question.job in self.gone:
                raise ModelJobGone
            if self.busy:
                raise self.busy.pop()
            self.fetched[question.job] += 1
            if self.fetched[question.job] < fetches:
                raise ModelPending(question.job)
            return self.script.answers[question.step - 1]

        known = KnownModel(ConfiguredModel(provider="scripted"), ScriptedModel(answer))
        self.models = Models({"fast": known}, "fast")


TALK = (wants(call("fetch", a=1)), says("done", usage={"input_tokens": 7}))


def finish(world: JobWorld) -> dict[str, Any]:
    asked = world.prompt()
    world.until(lambda: world.closes, PATIENCE_S)
    world.settle()
    check_lawful(world)
    found = [fact for fact in world.recorded() if isinstance(fact, turn.Completed | turn.Failed)]
    assert found, asked.answers
    return result_of(asked)


def test_a_job_is_on_record_before_it_is_fetched_and_asked_for_once():
    with JobWorld(*TALK) as world:
        world.begin()
        assert finish(world)["result"] == "done"
        assert [step for _, step in world.posts] == [1, 2]
        assert [fact.job for fact in world.model_facts(model.JobStarted)] == ["job_1", "job_2"]
        assert len(world.model_facts(model.Requested)) == 2
        assert replay(world).state == "equal"


def test_a_long_job_parks_its_run_and_lists_say_what_it_waits_for():
    with JobWorld(says("done"), fetches=20) as world:
        world.begin()
        finish(world)
        parked = [fact for fact in world.recorded() if isinstance(fact, turn.Parked)]
        assert {fact.code for fact in parked} == {"WAITING_FOR_MODEL"}
        delays = [fact.until_ms - fact.at_ms for fact in parked]
        assert delays == sorted(delays)
        assert all(5_000 < delay <= 30_000 for delay in delays)
        assert len(world.posts) == 1


def test_wherever_a_node_dies_a_question_with_a_job_is_not_asked_again():
    with JobWorld(*TALK) as calm:
        calm.begin()
        finish(calm)
        kinds = calm.messages()
    for moment in range(1, len(kinds)):
        with JobWorld(*TALK) as world:
            world.begin()
            world.prompt()
            world.kill_after(moment)
            settle_calls(world)
            assert "done" in str(world.recorded()), moment
            lost = len(world.model_facts(model.Lost))
            assert len(world.posts) <= 2 + lost
            started = [(fact.step, fact.attempt) for fact in world.model_facts(model.JobStarted)]
            ends = [(fact.step, fact.attempt) for fact in world.model_facts(model.Lost)]
            assert not set(started) & set(ends), "what has a job is fetched"
            check_lawful(world)


def test_a_job_that_the_provider_has_forgotten_is_a_lost_answer():
    with JobWorld(says("done")) as world:
        world.gone.add("job_1")
        world.begin()
        assert finish(world)["result"] == "done"
        assert len(world.posts) == 2
        assert [fact.attempt for fact in world.model_facts(model.Lost)] == [1]


def test_a_job_that_cannot_be_fetched_for_a_while_is_fetched_later():
    with JobWorld(says("done")) as world:
        world.busy = [BUSY, BUSY, BUSY]
        world.begin()
        assert finish(world)["result"] == "done"
        assert len(world.posts) == 1
        assert world.model_facts(model.Failed) == []


def test_a_job_that_can_never_be_fetched_ends_its_run():
    with JobWorld(says("never")) as world:
        world.busy = [ModelFailure("no such key", kind=LlmFailureKind.INVALID_MODEL)]
        world.begin()
        assert "MODEL_FAILED" in str(finish(world)) or "MODEL_FAILED" in str(world.recorded())
        assert len(world.posts) == 1


def test_a_run_that_waits_for_a_job_is_cancelled_and_another_follows():
    with JobWorld(says("done"), fetches=100) as world:
        world.begin()
        world.prompt()
        world.until(lambda: world.model_facts(model.JobStarted))
        world.request("cancel", SESSION, run_id=world.runs[0], now=True)
        world.until(lambda: world.closes, PATIENCE_S)
        another_node(world)
        (failed,) = world.model_facts(model.Failed)
        assert failed.code == "CANCELLED"
        check_lawful(world)


def test_hooks_judge_an_answer_that_a_job_brings():
    hook = quick_hook("after_model_call", lambda _: stop_run("secret", "no"), "stop_run")
    with JobWorld(says("done")) as world:
        world.node_hooks = NodeHooks((hook,))
        world.begin()
        assert "HOOK_DENIED" in str(finish(world)) + str(world.recorded())
        assert len(world.posts) == 1
        assert len(world.model_facts(model.Answered)) == 1


def test_only_a_provider_that_has_jobs_is_configured_so(tmp_path: Path):
    configured = ConfiguredModel(provider="anthropic", model="m", background=True)
    with pytest.raises(Refused, match="CONFIG_INVALID"):
        open_models({"m": configured}, "m", tmp_path)


# --- in a node ------------------------------------------------------------------------------------


def test_a_killed_nodes_job_is_one_request(server: EmbeddedServer, tmp_path: Path):
    """The node dies when it is about to fetch its second job."""
    story = asyncio.run(kill_at(server, tmp_path, "model_request_recorded@4", "jobs"))
    assert faults(story) == []
    assert story.killed
    started = {
        (fact["run"], fact["step"], fact["attempt"])
        for fact in story.facts
        if fact["type"] == "model.job_started.v1"
    }
    lost = {
        (fact["run"], fact["step"], fact["attempt"])
        for fact in story.facts
        if fact["type"] == "model.lost.v1"
    }
    assert len(started) == 9
    assert not started & lost
    assert len(story.questions) == 9
    assert not lost
