"""A model drives runs: its answers lead to calls, to the next question, or to the end.

A node may die with any message, and a run may be cancelled after any: every question is on record
before it is asked, and what was answered is asked for once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import asdict

from rookery.actors.kernel.machines.machine import SEED
from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.external_driver import turn_snapshot
from rookery.actors.turns.state import SessionTurns
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.facts import model
from rookery.schemas.machines.views import TurnView
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants
from tests.execution.scripted_driver import CODECS, SESSION
from tests.execution.test_scripted_driver import settle_calls

TALK: Final = (
    wants(call("fetch", a=1), call("fetch", a=2, b=3)),
    wants(call("nope"), call("fetch", a="x")),
    wants(call("send", a=1), call("nope")),
    {"text": ""},
    says("done"),
)
"""Two calls; two that are refused; one of each; nothing at all; the end."""
CONVERSATIONS: Final = {
    "text": (says("hello"),),
    "talk": TALK,
    "sleeps": (wants(call("sleep", seconds=5), call("fetch", a=1)), says("slept")),
    "only refused": (wants(call("nope")), says("done")),
    "misbehaves": (wants(call("nope")),),
    "says nothing": ({"text": ""},),
    "fails": (wants(call("fetch", a=1)), {"failure": {"message": "no credit", "status": 402}}),
}
ENDS: Final = {
    "text": ("ok", "hello"),
    "talk": ("ok", "done"),
    "sleeps": ("ok", "slept"),
    "only refused": ("ok", "done"),
    "misbehaves": ("runtime_error", "MODEL_MISBEHAVED"),
    "says nothing": ("runtime_error", "MODEL_MISBEHAVED"),
    "fails": ("runtime_error", "MODEL_FAILED"),
}
EACH = pytest.mark.parametrize("name", CONVERSATIONS)


def bodies(world: AgentWorld) -> list[Any]:
    """What was asked, without the attempts that were lost."""
    found = {question.step: question for question in world.questions}
    return [msgspec.structs.replace(found[step], attempt=0) for step in sorted(found)]


@cache
def undisturbed(name: str) -> tuple[dict[str, Any], list[str], list[Any], int]:
    """The result of a conversation, its rows, its questions, and the number of its messages."""
    with AgentWorld(*CONVERSATIONS[name]) as world:
        world.begin()
        asked = world.prompt()
        world.until(lambda: asked.answers and world.closes)
        world.settle()
        world.check_questions()
        check_lawful(world)
        result = result_of(asked)
        while result["status"] == "interrupted":
            world.until(lambda: len(asked.answers) > 1)
            result = result_of(asked)
        return result, rows(world), bodies(world), len(world.stored("", SESSION))


def rows(world: AgentWorld) -> list[str]:
    return [fact.row for fact in world.recorded() if hasattr(fact, "row")]


def moments(name: str) -> Iterator[int]:
    return iter(range(1, undisturbed(name)[3] + 1))


def check_lawful(world: AgentWorld) -> None:
    """The machine decides each fact in its state, and the actor has the same last state."""
    decider, state = TurnsDecider(), SessionTurns()
    inputs = {asked.fact: on for on, asked in TURN.inputs.items()}
    for stored in world.stored("", SESSION):
        for fact in CODECS[stored.entity.family].decode(stored.body):
            if stored.entity.family == "session":
                state = decider.observe(state, fact)
                continue
            if (on := inputs.get(type(fact))) is not None:
                decided = TURN.decide(state.turn, on, msgspec.structs.replace(fact, row=""))
                assert decided.row == fact.row
            state = decider.evolve(state, fact)
            assert decider.load(decider.dump(state)) == state
    assert world.turn() == TurnView(**asdict(turn_snapshot(state.turn)), effects=())


# --- undisturbed ----------------------------------------------------------------------------------


@EACH
def test_a_prompt_leads_to_its_end(name: str):
    result = undisturbed(name)[0]
    status, what = ENDS[name]
    assert result["status"] == status
    assert (result["result"] if status == "ok" else result["error"]["code"]) == what


def test_the_results_of_calls_follow_their_order_and_mistakes_are_answers():
    questions = undisturbed("talk")[2]
    shown = [
        [part.content for part in q.messages[-1].parts if hasattr(part, "content")]
        for q in questions
    ]
    assert shown[1] == ['"done"', '"done"']
    assert ["UNKNOWN_TOOL" in shown[2][0], "TYPE_ERROR" in shown[2][1]] == [True, True]
    assert [shown[3][0], "UNKNOWN_TOOL" in shown[3][1]] == ['"done"', True]
    assert "the nearest are" in shown[2][0]


def test_a_conversation_goes_on_with_the_next_prompt_and_after_a_restart():
    with AgentWorld(says("hello")) as world:
        world.begin()
        world.answered()
        world.answered()
        another_node(world)
        world.answered()
        heads = [fact.head for fact in world.model_facts(model.Requested)]
        counts = [len(question.messages) for question in world.questions]
        assert counts == [1, 3, 5]
        assert len(set(heads)) == 3
        assert [fact.index for fact in world.recorded("conversation")] == [0, 2, 4]


def test_programs_and_prompts_share_a_session_and_programs_run_as_before():
    with AgentWorld(says("hello")) as world:
        world.begin()
        for _ in range(2):
            played = world.play("talk")
            world.until(lambda played=played: played.answers)
            assert result_of(played)["result"] == ["done"] * 3
            assert world.answered()["result"] == "hello"
        check_lawful(world)


def test_a_long_prompt_and_a_long_answer_are_blobs_and_are_sent_whole():
    with AgentWorld(wants(call("fetch", a=1), text="x" * 20_000), says("done")) as world:
        world.begin()
        asked = world.prompt("y" * 70_000)
        world.until(lambda: asked.answers)
        another_node(world)
        world.answered()
        texts = [len(message.text) for message in world.questions[-1].messages]
        assert texts[:2] == [70_000, 20_000]
        first, _ = world.recorded("conversation")
        assert first.message_blob
        assert first.message is msgspec.UNSET


def another_node(world: AgentWorld) -> None:
    world.nodes[-1].crash()
    world.begin()
    world.pass_s(20)


# --- limits ---------------------------------------------------------------------------------------


def test_the_model_is_not_asked_beyond_the_limit_of_turns():
    with AgentWorld(wants(call("fetch", a=1))) as world:
        world.begin()
        asked = world.prompt(limits={"turns": 3})
        world.until(lambda: asked.answers)
        found = result_of(asked)
        assert (found["status"], found["error"]["code"]) == ("resource_exhausted", "TURN_LIMIT")
        assert len(world.questions) == 3
        assert found["metrics"]["external_calls_count"] == 3
        world.settle()
        check_lawful(world)


def test_calls_beyond_the_limit_of_calls_are_answered_with_its_code():
    with AgentWorld(wants(*(call("fetch", a=n) for n in range(3))), says("done")) as world:
        world.begin()
        asked = world.prompt(limits={"tool_calls": 2})
        world.until(lambda: asked.answers)
        results = [part.content for part in world.questions[-1].messages[-1].parts]
        assert ["EXTERNAL_CALLS_EXCEEDED" in text for text in results] == [False, False, True]


def test_more_than_128_calls_of_one_answer_are_refused():
    with AgentWorld(wants(*(call("fetch", a=n) for n in range(130))), says("done")) as world:
        world.begin()
        world.answered()
        results = [part.content for part in world.questions[-1].messages[-1].parts]
        assert sum("TOO_MANY_CALLS" in text for text in results) == 2
        assert sum(world.backend.executions.values()) == 128


def test_five_hundred_calls_are_answered_and_more_end_the_run():
    with AgentWorld(wants(*(call("nope") for _ in range(500))), says("done")) as world:
        world.begin()
        assert world.answered()["result"] == "done"
        many = world.answered(wants(*(call("nope") for _ in range(513))))
        assert many["error"]["code"] == "MODEL_MISBEHAVED"
        world.settle()
        world.check_questions()


def test_a_question_without_an_answer_ends_with_the_time_of_its_run():
    with AgentWorld(says("late")) as world:
        world.begin()
        world.hold = True
        asked = world.prompt(limits={"agent_wall_ms": 2_000})
        world.until(lambda: asked.answers)
        assert result_of(asked)["error"]["code"] == "TIMEOUT_WALL"
        world.settle()
        world.check_questions()
        check_lawful(world)


# --- killed ---------------------------------------------------------------------------------------


@EACH
def test_a_node_may_die_with_any_message_and_the_run_ends_the_same(name: str):
    _, undisturbed_rows, questions, _ = undisturbed(name)
    for moment in moments(name):
        with AgentWorld(*CONVERSATIONS[name]) as world:
            world.begin()
            world.prompt()
            world.kill_after(moment)
            settle_calls(world)
            assert rows(world) == undisturbed_rows, moment
            world.check_questions()
            check_lawful(world)
            assert without_ids(bodies(world)) == without_ids(questions)
            heads = {(fact.step, fact.head) for fact in world.model_facts(model.Requested)}
            assert len(heads) == len(questions), "a repeated question is the same"


def without_ids(questions: list[Any]) -> str:
    """The questions; ids derive from when the run began, and are numbered as they occur."""
    text = msgspec.json.encode(questions).decode()
    for number, found in enumerate(dict.fromkeys(re.findall(r"[0-9a-f-]{36}", text))):
        text = text.replace(found, str(number))
    return text


# --- cancelled ------------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("now", [True, False])
def test_a_run_may_be_cancelled_after_any_message_and_ends_once(name: str, now: bool):
    for moment in moments(name):
        with AgentWorld(*CONVERSATIONS[name]) as world:
            world.begin()
            world.prompt()

            def cancel(world: AgentWorld = world) -> None:
                world.ask("cancel", SESSION, run_id=world.runs[0], now=now)

            world.meanwhile(moment, partial(world._loop.call_soon, cancel))
            world.until_over()
            after = world.answered(says("and now?"))
            assert after["result"] == "and now?"
            world.settle()
            assert sorted(world.ends) == sorted(world.runs), "each ended once"
            world.check_questions()
            check_lawful(world)


def test_a_cancelled_run_does_not_wait_for_its_model():
    with AgentWorld(says("late")) as world:
        world.begin()
        world.hold = True
        asked = world.prompt()
        world.until(lambda: world.questions)
        world.request("cancel", SESSION, run_id=world.runs[0], now=True)
        world.until(lambda: asked.answers)
        assert result_of(asked)["status"] == "cancelled"
        (failed,) = world.model_facts(model.Failed)
        assert failed.code == "CANCELLED"


# --- the machine ----------------------------------------------------------------------------------


def test_a_model_takes_the_rows_of_its_table():
    walked = {row for name in CONVERSATIONS for row in undisturbed(name)[1]}
    assert walked >= {
        "StartConversationRun",
        "PrimitiveAppliedConversation",
        "LlmReturnedToolCallsPositive",
        "LlmReturnedToolCallsZero",
        "RegisterPendingOps",
        "OpsBarrierSatisfied",
        "ToolCallsResolvedToBoundary",
        "ToolCallsResolvedToCalling",
        "BoundaryContinueToCalling",
        "LlmReturnedTerminal",
        "BoundaryCompleteCompleted",
        "RunCompletedKeepsTerminal",
        "FatalFailure",
        "RunFailed",
        "AcknowledgeTerminal",
    }
    assert walked <= {row.name for row in TURN.transitions if row.edition is not SEED}


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "width"), [(0, 0), (1, 1), (1, 16), (4, 3)])
def test_a_run_of_n_steps_with_calls_is_2n_plus_3_messages(steps: int, width: int):
    answers = [wants(*(call("fetch", a=n) for n in range(width)))] * steps
    with AgentWorld(*answers, says("done")) as world:
        world.begin()
        world.answered()
        before = len(world.stored("", SESSION))
        world.answered()
        world.settle()
        messages = world.messages()[before:]
        assert messages.pop() == ["session.run_committed"], "of which the next input is spared"
        assert len(messages) == 2 * steps + 3
        assert messages[1][-1] == "model.requested"
        assert messages[-1][0] == "model.answered"
        assert messages[-1][-1] == "turn.terminal_acknowledged"


# --- messages without a model ---------------------------------------------------------------------


def test_messages_and_context_join_the_conversation_without_a_question():
    with AgentWorld(says("hello")) as world:
        world.begin()
        for key, text in (("sky", "rain"), ("sky", "sun"), ("sea", "calm")):
            assert (
                result_of(world.request("context", SESSION, context_key=key, text=text))["status"]
                == "ok"
            )
        before = len(world.stored("", SESSION))
        world.request("append", SESSION, text="It is Friday.", role="system")
        assert world.messages()[before:] == [
            ["session.run_committed", "session.input_accepted", "session.run_prepared"],
            [
                "turn.immediate_append_started",
                "conversation.message_added",
                "turn.primitive_applied",
                "turn.completed",
            ],
        ]
        assert world.questions == []
        world.answered()
        texts = [message.text for message in world.questions[-1].messages]
        assert texts == ["sun", "calm", "It is Friday.", "go on"]
        world.answered()
        shapes = [fact.shape.value for fact in world.recorded() if hasattr(fact, "shape")]
        assert shapes == ["conversation+context", "conversation"]
        check_lawful(world)
        another_node(world)
        world.answered()
        found = [message.text for message in world.questions[-1].messages]
        assert found == [*texts, "hello", "go on", "hello", "go on"]


def test_a_session_has_at_most_256_keys_of_context():
    with AgentWorld(says("hello")) as world:
        world.begin()
        for number in range(256):
            world.request("context", SESSION, context_key=f"k{number}", text="x")
        refused = result_of(world.request("context", SESSION, context_key="one-more", text="x"))
        assert refused["error"]["code"] == "QUOTA_EXCEEDED"
        assert (
            result_of(world.request("context", SESSION, context_key="k7", text="y"))["status"]
            == "ok"
        )
