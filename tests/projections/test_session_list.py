"""The list of sessions: by phase, language and time, page by page."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.actors.admission.in_flight import InFlightCounter
from rookery.actors.projections.lists.sessions import (
    UNREADABLE,
    SessionProjection,
    SessionQueryHandler,
)
from rookery.actors.projections.projector import Projector
from rookery.schemas.commands import SessionsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session
from rookery.schemas.replies import SessionList
from rookery.schemas.run import Language, RunRequest
from tests.projections.fact_builders import FactHistory


@pytest.fixture
def history() -> FactHistory:
    return FactHistory()


def sessions_of(history: FactHistory, **query: Any) -> SessionList:
    view = SessionQueryHandler.without_node(history)
    return asyncio.run(view.list(SessionsQuery(**query)))


def ids(history: FactHistory, **query: Any) -> list[str]:
    return [found.meta.id for found in sessions_of(history, **query).sessions]


def begin(history: FactHistory, key: str, **request: Any) -> None:
    """A session with one input that waits for its turn."""
    history.say(
        key,
        session.Initialized(row="Initialize"),
        session.Registered(row="RegisterSession", session_id_in=key),
        session.ExecutorEnsured(row="EnsureSessionWithExecutorIdle", session_id_in=key),
        session.InputAccepted(
            row="AcceptWithCompletionAttachedQueued",
            run=f"run-{key}",
            input_id=f"run-{key}",
            request=RunRequest(**request),
        ),
    )


def test_those_used_last_come_first_and_are_filtered(history: FactHistory):
    begin(history, "one")
    border_ms = history.now_ms + 1
    begin(history, "two", language="typescript")
    history.say("three", session.Initialized(row="Initialize"))
    assert ids(history) == ["three", "two", "one"]
    assert ids(history, language=Language.TYPESCRIPT) == ["two"]
    assert ids(history, used_since_ms=border_ms) == ["three", "two"]
    assert ids(history, phase="Idle", limit=1) == ["three"]
    assert ids(history, phase="Destroyed") == []


@pytest.mark.parametrize("phase", ["bogus", "destroyed", ""])
def test_an_unknown_phase_is_refused_with_the_known_ones(history: FactHistory, phase: str):
    with pytest.raises(Refused, match="no phase of a session") as refused:
        ids(history, phase=phase)
    assert refused.value.code == "INVALID_ARGUMENT"
    assert "Idle, Attached" in refused.value.hint


def test_pages_neither_lose_nor_repeat_and_say_how_many_there_are(history: FactHistory):
    for number in range(10):
        begin(history, f"s{number}")
    listed, before = [], None
    while True:
        page = sessions_of(history, limit=4, before=before)
        assert page.total == 10
        listed += [found.meta.id for found in page.sessions]
        if (before := page.next) is None:
            break
    assert listed == [f"s{number}" for number in range(9, -1, -1)]


@pytest.mark.parametrize("before", ["", "7", "x/s", "7/", "9" * 5_000 + "/s"])
def test_an_invalid_position_is_refused(history: FactHistory, before: str):
    with pytest.raises(Refused) as caught:
        sessions_of(history, before=before)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_a_session_that_cannot_be_read_hides_no_other(history: FactHistory):
    begin(history, "one")
    begin(history, "two")
    history.write("session", "one", b'[{"type":"session.initialized.v9"}]')
    assert ids(history, phase=UNREADABLE) == ["one"]
    assert ids(history) == ["two", "one"]


def test_the_load_of_a_realm_is_what_its_sessions_owe(history: FactHistory):
    begin(history, "one")
    load = InFlightCounter()
    reading = Projector(history, [SessionProjection(load)])
    asyncio.run(reading.refresh())
    assert load.total == 1
    history.say("one", session.InputCancelled(run="run-one", input_id="run-one"))
    asyncio.run(reading.refresh())
    assert load.total == 0
