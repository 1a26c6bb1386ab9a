"""The turn sends the result of its own run; the session sends what the turn did not know of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.actors.admission.commands import end_run
from rookery.actors.admission.effects import SendPastResult, SendReceipt, effects
from rookery.actors.admission.evolve import evolve
from rookery.schemas.envelope import Command
from rookery.schemas.facts import turn
from rookery.schemas.facts.session import RunCommitted
from rookery.schemas.run import RunResult
from tests.admission.session_harness import SessionHarness
from tests.execution.scripted_driver import SESSION, ScriptedWorld


def ends(world: ScriptedWorld) -> list[turn.Completed]:
    return [fact for fact in world.recorded("turn") if isinstance(fact, turn.Completed)]


def test_the_last_fact_of_a_turn_names_its_clients_and_answers_them():
    with ScriptedWorld() as world:
        world.begin()
        first = world.ask("run", SESSION, id="m-1", code="ponder")
        world.until(lambda: "started" in world.kinds("turn"))
        second = world.ask("run", SESSION, id="m-1", code="ponder")
        late = world.listen("replies.durable")
        world.submit("run", SESSION, id="m-1", reply_to="replies.durable", code="ponder")
        world.until(lambda: first.answers and second.answers and late)
        world.pass_s(1)
        (end,) = ends(world)
        (committed,) = [f for f in world.recorded("session") if isinstance(f, RunCommitted)]
        assert len(end.reply_to) == 3
        assert committed.unanswered == ()
        replies = [first.answers, second.answers, late]
        assert [len(one) for one in replies] == [1, 1, 1]
        assert {msgspec.json.decode(one[0].body)["result"] for one in replies} == {"thought"}


def test_a_repeat_of_an_ended_run_gets_its_result_from_the_journal():
    with ScriptedWorld() as world:
        world.begin()
        first = world.ask("run", SESSION, id="m-1", code="answer")
        world.until(lambda: first.answers)
        world.pass_s(1)
        again = world.ask("run", SESSION, id="m-1", code="answer")
        world.until(lambda: again.answers)
        assert again.answers[0].body == first.answers[0].body
        assert len(ends(world)) == 1


@pytest.mark.parametrize(
    ("named", "unanswered"),
    [
        (("first", "second"), ()),
        (("first",), ("second",)),
        ((), ("first", "second")),
        (msgspec.UNSET, msgspec.UNSET),
    ],
    ids=["both are known", "one came too late", "no client is known", "an older version ended it"],
)
def test_the_session_answers_the_clients_that_the_turn_did_not_name(named: Any, unanswered: Any):
    session = SessionHarness()
    session.run(reply_to="first")
    session.repeat(session.commands[0], "second")
    run = session.state.current.run_id
    end = turn.Completed(row="", run=run, result=RunResult(), reply_to=named)
    command = Command(verb="turn", key="s", id="r", body=end, sequence=9)
    (committed,) = end_run(session.state, command, now_ms=session.now_ms)
    assert committed.unanswered == unanswered
    sent = effects(evolve(session.state, committed), committed)
    expected = ("first", "second") if unanswered is msgspec.UNSET else unanswered
    assert tuple(one.reply_to for one in sent) == expected
    assert all(isinstance(one, SendPastResult) for one in sent)


def test_an_input_that_never_ran_is_answered_by_the_session():
    session = SessionHarness()
    session.run(reply_to="first")
    session.run(reply_to="second")
    (withdrawn,) = session.cancel(session.state.queue[0].run_id)
    (sent,) = effects(session.state, withdrawn)
    assert isinstance(sent, SendReceipt)
    assert (sent.reply_to, sent.receipt.state) == ("second", "cancelled")
