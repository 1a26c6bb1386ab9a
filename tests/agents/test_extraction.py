"""A run with a schema gives JSON that fits it, or says that its model gave none."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import pytest

from rookery.actors.execution.agents.extraction import check_output_schema, extract
from rookery.schemas.agents import ModelPurpose
from rookery.schemas.errors import Refused
from rookery.schemas.facts import model
from tests.agents.agent_world import AgentWorld, call, result_of, says, wants
from tests.agents.test_model_driver import bodies, check_lawful, rows, without_ids

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"sum": {"type": "integer"}},
    "required": ["sum"],
    "additionalProperties": False,
}
GOOD, BAD = says('{"sum": 3}'), says('{"sum": "3"}')
REFUSED: Final = {"failure": {"message": "I may not", "code": "MODEL_REFUSED"}}
CONVERSATIONS: Final = {
    "at once": (wants(call("fetch", a=1)), GOOD),
    "in a block": (says('Here it is:\n```json\n{"sum": 3}\n```'),),
    "when asked": (wants(call("fetch", a=1)), says("It is three."), GOOD),
    "when asked again": (says("It is three."), BAD, GOOD),
    "wants calls": (says("It is three."), wants(call("fetch", a=1)), GOOD),
    "never": (says("It is three."), BAD),
    "refused": (says("It is three."), REFUSED),
}
ENDS: Final = {"never": "OUTPUT_INVALID", "refused": "OUTPUT_INVALID"}
EACH = pytest.mark.parametrize("name", CONVERSATIONS)


class Played(NamedTuple):
    """What a conversation came to."""

    result: dict[str, Any]
    rows: list[str]
    sent: list[Any]
    requested: list[Any]


def play(name: str, moment: int = 0) -> Played:
    """The run of a conversation; its node dies with this message."""
    with AgentWorld(*CONVERSATIONS[name]) as world:
        world.begin()
        asked = world.prompt(output_schema=SCHEMA)
        if moment:
            world.kill_after(moment)
        world.until(lambda: world.closes and asked.answers)
        world.settle()
        world.check_questions()
        check_lawful(world)
        requested = world.model_facts(model.Requested)
        return Played(result_of(asked), rows(world), bodies(world), requested)


undisturbed = cache(play)


@EACH
def test_the_result_fits_the_schema_or_the_run_says_that_none_does(name: str):
    result = undisturbed(name).result
    if name in ENDS:
        assert (result["status"], result["error"]["code"]) == ("runtime_error", ENDS[name])
        if name == "never":
            assert "after 3 questions for it: at $.sum" in result["error"]["message"]
    else:
        assert (result["status"], result["result"]) == ("ok", {"sum": 3})


@pytest.mark.parametrize(("name", "moment"), [(n, m) for n in CONVERSATIONS for m in (3, 4, 5, 7)])
def test_a_restart_changes_neither_the_rows_nor_the_questions(name: str, moment: int):
    calm, world = undisturbed(name), play(name, moment)
    assert world.result["status"] == calm.result["status"]
    assert world.rows == calm.rows
    assert without_ids(world.sent) == without_ids(calm.sent)


def test_questions_for_the_result_offer_no_tools_and_say_what_is_wrong():
    world = undisturbed("when asked again")
    purposes = [fact.purpose for fact in world.requested]
    assert purposes == [ModelPurpose.TURN, ModelPurpose.EXTRACTION, ModelPurpose.EXTRACTION]
    assert [bool(one.tools) for one in world.sent] == [True, False, False]
    assert "it is no JSON" in world.sent[1].messages[-1].text
    assert "expected integer, given a string" in world.sent[2].messages[-1].text
    assert '"required":["sum"]' in world.sent[0].instructions
    assert len({fact.tools_digest for fact in world.requested}) == 2


def test_extraction_takes_the_rows_of_its_table():
    walked = {row for name in CONVERSATIONS for row in undisturbed(name).rows}
    assert walked >= {
        "EnterExtraction",
        "ExtractionStart",
        "ExtractionValidationPassed",
        "ExtractionValidationFailedRetry",
        "ExtractionValidationFailedExhausted",
        "ExtractionFailedTerminal",
    }


@pytest.mark.parametrize(
    "schema",
    [
        [],
        {"type": "nothing"},
        {"$ref": "http://example.com/schema"},
        {"enum": ["x" * (64 << 10)]},
    ],
    ids=["no object", "no type", "foreign", "large"],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any):
    with pytest.raises(Refused) as refused:
        check_output_schema(schema)
    assert refused.value.code in ("INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"sum": 3}', ""),
        (' {"sum": 3}\n', ""),
        ('```\n{"sum": 3}\n```', ""),
        ("three", "it is no JSON"),
        ('{"sum": 3, "more": 1}', "at $"),
        ('{"sum": 1e400}', "it is no JSON"),
        ("[" * 2_000, "it is no JSON"),
        ("", "it is no JSON"),
    ],
)
def test_a_text_has_a_value_or_an_error(text: str, error: str):
    found = extract(text, SCHEMA)
    assert found.error.startswith(error)
    assert bool(found.error) == bool(error)
