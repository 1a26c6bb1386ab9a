"""Answers while they are written: numbered pieces for readers, which nothing follows from."""

from __future__ import annotations

from rookery.schemas.facts import model
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants

TEXT = "Words, and more words."


def pieces(world: AgentWorld) -> list[tuple[int, int, int, str]]:
    """Step, attempt, number and text of each piece that readers get."""
    return [
        (found.step, found.attempt, number, delta.text)
        for message in world.outputs
        if (found := message.answer)
        for number, delta in enumerate(found.deltas, found.number)
    ]


def test_the_pieces_of_each_attempt_are_numbered_and_are_its_text():
    with AgentWorld(
        wants(call("fetch", a=1), text="I look. ", word_ms=40), says(TEXT, word_ms=40)
    ) as world:
        world.begin()
        world.answered()
        found = pieces(world)
        for step, text in ((1, "I look. "), (2, TEXT)):
            of_step = [piece for piece in found if piece[0] == step]
            assert [number for _, _, number, _ in of_step] == list(range(1, len(of_step) + 1))
            assert "".join(text for _, _, _, text in of_step) == text
        assert all(fact.first_token_ms >= 40 for fact in world.model_facts(model.Answered))


def test_pieces_that_come_together_are_one_message():
    with AgentWorld(says(TEXT, word_ms=0)) as world:
        world.begin()
        world.answered()
        assert pieces(world) == [(1, 1, 1, TEXT)]


def test_a_cut_answer_is_on_record_with_what_was_said_and_its_readers_drop_it():
    failure = {"message": "the stream was cut", "kind": "InvalidModel", "sent": "maybe"}
    with AgentWorld(says("I was about to", word_ms=40, failure=failure)) as world:
        world.begin()
        asked = world.prompt()
        world.until(lambda: asked.answers)
        assert result_of(asked)["error"]["code"] == "MODEL_FAILED"
        (failed,) = world.model_facts(model.Failed)
        assert (failed.kind.value, failed.sent.value) == ("InvalidModel", "maybe")
        partial = world.run(world.nodes[-1].bus.blobs.get(failed.partial_blob))
        assert partial == b"I was about to"
        assert [found.cut for one in world.outputs if (found := one.answer)][-1]
        world.check_questions()


def test_a_repeated_question_has_pieces_of_its_own():
    with AgentWorld(says(TEXT, word_ms=40)) as world:
        world.begin()
        world.prompt()
        world.until(lambda: world.outputs)
        world.nodes[-1].crash()
        world.begin()
        world.until(lambda: world.closes)
        text = "".join(text for _, attempt, _, text in pieces(world) if attempt == 2)
        assert text == TEXT


def test_older_readers_of_output_skip_the_pieces_of_answers():
    """They know neither ``answer`` nor its kinds, and find no piece of output."""
    with AgentWorld(says(TEXT, word_ms=0)) as world:
        world.begin()
        world.answered()
        assert {(one.number, one.pieces) for one in world.outputs} == {(0, ())}
