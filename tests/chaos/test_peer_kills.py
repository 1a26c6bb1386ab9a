"""Conversations whose node dies: nothing is lost, nothing is sent or admitted twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.peer_kills import Conversation, converse_by_programs, kill_at, undisturbed

SHORT = ("appended@8", "effect_started@8", "envelope_published@2")
"""Places where a death costs most; the long form is ``make chaos``."""


@pytest.fixture(scope="module")
def calm(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    return asyncio.run(undisturbed(server, tmp_path_factory.mktemp("calm")))


def test_the_undisturbed_conversation_has_all_its_facts(calm: Conversation):
    assert calm.results == [[1, None], "NO_TESTS: write some"]
    kinds = {
        session: [fact["type"].split(".")[1] for fact in facts[:-1]]
        for session, facts in calm.facts.items()
    }
    answered = ["envelope_classified", "response_progressed"]
    ended = ["envelope_classified", "response_ended"]
    assert kinds["planner"] == [*["request_sent", *answered, *ended] * 2, "message_sent"]
    received = ["envelope_classified", "request_received", "progress_sent", "response_replied"]
    assert kinds["coder"] == [*received * 2, "envelope_classified"]


@pytest.mark.parametrize("failpoint", SHORT)
def test_the_journals_of_both_sessions_are_equal_wherever_their_node_dies(
    server: EmbeddedServer, tmp_path: Path, calm: Conversation, failpoint: str
):
    assert asyncio.run(kill_at(server, tmp_path, failpoint)) == calm


SHORT_OF_PROGRAMS = ("effect_started@12", "item_handled@1")


@pytest.fixture(scope="module")
def calm_programs(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Conversation:
    folder = tmp_path_factory.mktemp("calm-programs")
    return asyncio.run(undisturbed(server, folder, converse_by_programs))


def test_undisturbed_programs_ask_and_answer_once_each(calm_programs: Conversation):
    assert calm_programs.results == [[1, "planner"], [2, "planner"], 2]


@pytest.mark.parametrize("failpoint", SHORT_OF_PROGRAMS)
def test_programs_ask_and_answer_once_each_wherever_their_node_dies(
    server: EmbeddedServer, tmp_path: Path, calm_programs: Conversation, failpoint: str
):
    found = asyncio.run(kill_at(server, tmp_path, failpoint, converse_by_programs))
    assert found == calm_programs
