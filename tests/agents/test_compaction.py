"""A summary or a line replaces older messages, or their results; the journal keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.execution.agents.compaction import older_messages
from rookery.actors.execution.agents.models import KnownModel, Models
from rookery.schemas.agents import (
    ConfiguredModel,
    ConversationMessage,
    MessageRole,
    ModelPurpose,
    ResultPart,
    TextPart,
)
from rookery.schemas.facts import model
from rookery.schemas.facts.conversation import Compacted
from tests.agents.agent_world import AgentWorld, call, result_of, says, script, wants
from tests.agents.test_model_driver import another_node, check_lawful, rows, without_ids
from tests.agents.test_model_replays import replay
from tests.execution.scripted_driver import SESSION
from tests.execution.test_scripted_driver import settle_calls

SUMMARY = says("the user likes tea", usage={"input_tokens": 40, "output_tokens": 5})
FETCH = wants(call("fetch", a=1), text="I look. " + "x" * 900)
OVERFLOW = {"failure": {"message": "too long", "kind": "ContextExceeded", "status": 400}}
REFUSED = {"failure": {"message": "no", "code": "MODEL_REFUSED"}}


class SmallWorld(AgentWorld):
    """Its model takes questions of at most so many tokens."""

    def __init__(self, *answers: dict[str, Any], context_tokens: int | None = 1_200) -> None:
        super().__init__(*answers)
        configured = ConfiguredModel(
            provider="scripted", model="test", context_tokens=context_tokens
        )
        known = KnownModel(configured, self.models.model("fast"))
        self.models = Models({"fast": known}, "fast")


def compact(world: AgentWorld, **options: Any) -> dict[str, Any]:
    asked = world.ask("run", SESSION, compact=options)
    world.until(lambda: asked.answers)
    return result_of(asked)


def talk(world: AgentWorld, times: int) -> None:
    for number in range(times):
        world.request("append", SESSION, text=f"message {number}")


def texts(world: AgentWorld) -> list[str]:
    """What the model was asked last."""
    return [message.text for message in world.questions[-1].messages]


def compacted(world: AgentWorld) -> list[Compacted]:
    return [fact for fact in world.recorded("conversation") if isinstance(fact, Compacted)]


# --- what is replaced -----------------------------------------------------------------------------


def message(name: str, role: str = "user") -> ConversationMessage:
    return ConversationMessage(id=name, role=MessageRole(role), parts=(TextPart(text=name),))


@pytest.mark.parametrize(
    ("roles", "keep", "older"),
    [
        ("uauaua", 2, "0123"),
        ("uauaua", 6, ""),
        ("uauaua", 9, ""),
        ("uauaua", 5, ""),
        ("uauaua", 0, "012345"),
        ("uuatau", 3, "01"),
        ("uuatat", 1, "0123"),
    ],
    ids=["all but the last", "none", "too few", "one alone", "all", "whole calls", "results"],
)
def test_the_last_messages_stay_and_results_stay_with_their_calls(
    roles: str, keep: int, older: str
):
    names = {"u": "user", "a": "assistant", "t": "tool"}
    messages = [message(str(n), names[role]) for n, role in enumerate(roles)]
    assert "".join(one.id for one in older_messages(messages, (), keep)) == older


def test_messages_of_context_stay():
    messages = [message(name) for name in "abcdef"]
    assert [one.id for one in older_messages(messages, {"b"}, 2)] == ["a", "c", "d"]


# --- asked for ------------------------------------------------------------------------------------


def test_a_summary_takes_the_place_of_older_messages_until_another_does():
    with AgentWorld(SUMMARY) as world:
        world.begin()
        talk(world, 6)
        world.request("context", SESSION, context_key="sky", text="sun")
        found = compact(world, keep=2)
        assert found["result"]["messages"] == 5
        assert found["result"]["tokens_before"] > found["result"]["tokens_after"] > 0
        assert found["usage"] == {"turns": 1, "input_tokens": 40, "output_tokens": 5}
        (asked,) = world.questions
        assert asked.tools == ()
        assert all(f"[user] message {n}" in asked.messages[0].text for n in range(5))
        world.answered(says("hello"))
        summary = "Summary of the conversation before:\nthe user likes tea"
        assert texts(world) == [summary, "message 5", "sun", "go on"]
        another_node(world)
        world.answered()
        assert texts(world) == [summary, "message 5", "sun", "go on", "hello", "go on"]
        world.script, rest = script(says("shorter")), ["sun", "hello", "go on"]
        assert compact(world, keep=1)["result"]["messages"] == 5
        world.answered(says("hello"))
        assert texts(world) == [summary.replace("the user likes tea", "shorter"), *rest]
        world.settle()
        check_lawful(world)


def test_messages_are_left_out_without_a_question():
    with AgentWorld(says("hello")) as world:
        world.begin()
        talk(world, 4)
        before = len(world.stored("", SESSION))
        assert compact(world, keep=1, drop=True)["result"]["messages"] == 3
        assert len(world.stored("", SESSION)) - before == 2, "an input, and all of the run"
        assert world.questions == []
        world.answered()
        assert texts(world) == ["[3 earlier messages are left out here]", "message 3", "go on"]
        assert compact(world, keep=100)["result"] == {"messages": 0}
        assert len(compacted(world)) == 1
        world.settle()
        check_lawful(world)


@pytest.mark.parametrize(
    ("answer", "code"),
    [(REFUSED, "MODEL_REFUSED"), ({"text": ""}, "MODEL_MISBEHAVED")],
    ids=["refused", "empty"],
)
def test_without_a_summary_nothing_is_replaced(answer: dict[str, Any], code: str):
    with AgentWorld(answer) as world:
        world.begin()
        talk(world, 4)
        assert compact(world, keep=1)["error"]["code"] == code
        assert compacted(world) == []
        world.answered(says("hello"))
        assert len(texts(world)) == 5
        world.settle()
        check_lawful(world)


def test_a_compaction_is_within_the_budgets_of_its_run():
    with AgentWorld(SUMMARY) as world:
        world.begin()
        talk(world, 4)
        asked = world.ask("run", SESSION, compact={"keep": 1}, limits={"tokens": 20})
        world.until(lambda: asked.answers)
        assert result_of(asked)["error"]["code"] == "BUDGET_EXHAUSTED"
        assert world.questions == []


@pytest.mark.parametrize(
    "more",
    [{"prompt": "x"}, {"output_schema": {"type": "object"}}, {"tools": ["fetch"]}, {"code": "1"}],
)
def test_a_compaction_has_no_prompt_and_no_tools(more: dict[str, Any]):
    with AgentWorld(SUMMARY) as world:
        world.begin()
        refused = result_of(world.request("run", SESSION, compact={}, **more))
        assert refused["error"]["code"] == "INVALID_ARGUMENT"


# --- within a run ---------------------------------------------------------------------------------

LONG = (*[FETCH] * 6, SUMMARY, FETCH, says("done"))
"""With so many calls a summary is worth it before the seventh question."""
OVERFLOWING = (*[FETCH] * 5, OVERFLOW, SUMMARY, FETCH, says("done"))


def test_older_messages_are_summarised_before_they_are_too_long():
    with SmallWorld(*LONG) as world:
        world.begin()
        assert world.answered()["result"] == "done"
        purposes = [fact.purpose for fact in world.model_facts(model.Requested)]
        assert purposes.count(ModelPurpose.COMPACTION) == 1
        assert purposes[6] is ModelPurpose.COMPACTION
        (fact,) = compacted(world)
        shown = [text for text in texts(world) if text.startswith("Summary of the")]
        assert len(shown) == 1
        assert fact.tokens_after < fact.tokens_before
        world.settle()
        check_lawful(world)
        assert replay(world).state == "equal"


@pytest.mark.parametrize("answers", [LONG, OVERFLOWING], ids=["too long", "overflow"])
def test_a_node_may_die_with_any_message_and_the_same_is_asked(answers: Any):
    tokens = 1_200 if answers is LONG else None
    with SmallWorld(*answers, context_tokens=tokens) as calm:
        calm.begin()
        calm.prompt()
        settle_calls(calm)
        assert len(compacted(calm)) == 1
        asked, walked, kinds = _asked(calm), rows(calm), calm.messages()
    first = [n for n, one in enumerate(kinds, 1) if "model.requested" in one][5]
    for moment in range(first, len(kinds)):
        with SmallWorld(*answers, context_tokens=tokens) as mortal:
            mortal.begin()
            mortal.prompt()
            mortal.kill_after(moment)
            settle_calls(mortal)
            assert rows(mortal) == walked, moment
            mortal.check_questions()
            check_lawful(mortal)
            assert without_ids(_asked(mortal)) == without_ids(asked), moment
            assert replay(mortal).state == "equal"


def _asked(world: AgentWorld) -> list[Any]:
    return list({q.step: [*q.messages, q.tools] for q in world.questions}.values())


@pytest.mark.parametrize("answer", [REFUSED, {"text": ""}, OVERFLOW], ids=str)
def test_results_are_left_out_where_there_is_no_summary(answer: dict[str, Any]):
    with AgentWorld(*[FETCH] * 5, OVERFLOW, answer, says("done")) as world:
        world.begin()
        assert world.answered()["result"] == "done"
        results = [
            part.content
            for one in world.questions[-1].messages
            for part in one.parts
            if isinstance(part, ResultPart)
        ]
        left_out = ["left out" in text for text in results]
        assert left_out == [True, False, False, False, False]
        world.settle()
        check_lawful(world)
        assert replay(world).state == "equal"


def test_a_question_that_stays_too_long_ends_its_run():
    with AgentWorld(*[FETCH] * 5, OVERFLOW, SUMMARY, OVERFLOW) as world:
        world.begin()
        found = world.answered()
        assert (found["status"], found["error"]["code"]) == ("runtime_error", "MODEL_FAILED")
        assert len(world.questions) == 8
        world.settle()
        check_lawful(world)
        assert replay(world).state == "equal"


def test_a_short_conversation_that_is_too_long_ends_its_run():
    with AgentWorld(OVERFLOW) as world:
        world.begin()
        assert world.answered()["error"]["code"] == "MODEL_FAILED"
        assert len(world.questions) == 1


def test_a_lost_summary_is_asked_for_again():
    with AgentWorld(SUMMARY) as world:
        world.begin()
        talk(world, 4)
        world.hold = True
        asked = world.ask("run", SESSION, compact={"keep": 1})
        world.until(lambda: world.questions)
        world.hold = False
        another_node(world)
        world.until(lambda: asked.answers)
        assert result_of(asked)["result"]["messages"] == 3
        requested = world.model_facts(model.Requested)
        assert [fact.purpose for fact in requested] == [ModelPurpose.COMPACTION] * 2
        assert len({fact.head for fact in requested}) == 1
        assert requested[1].repeats == 1
        world.check_questions()
