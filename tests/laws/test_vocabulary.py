"""Names are words of the glossary: classes once, modules nouns, functions verbs, facts structs.

What broke these laws before there were any is in ``allowed.toml``, which may only shrink.
"""

from __future__ import annotations

import pytest

from tests.laws.census import broken
from tests.laws.findings import Finding, counted
from tests.laws.names import (
    everyday_methods,
    fact_literals,
    participle_modules,
    repeated_classes,
    synonyms_in_names,
    synonyms_in_test_names,
    synonyms_in_tests,
)
from tests.laws.source import expect_none, written
from tests.laws.vocabulary import NOT_IN_TEST_NAMES, SYNONYMS, participle, synonyms, words


@pytest.mark.parametrize(
    "law",
    [
        "repeated_classes",
        "participle_modules",
        "everyday_methods",
        "synonyms_in_names",
        "synonyms_in_tests",
        "synonyms_in_test_names",
        "fact_literals",
    ],
)
def test_the_checkout_breaks_no_law_about_names(law: str):
    expect_none(broken(law))


# --- each law can be broken -----------------------------------------------------------------------


def test_a_class_name_exists_once_wherever_the_class_is():
    found = repeated_classes(
        [
            written("bus/a.py", "class Place: ...\nclass _Row: ..."),
            written("ops/b.py", "def f():\n    class Place: ...\nclass Once:\n    class _Row: ..."),
        ]
    )
    assert list(found) == [
        Finding("_Row", "bus/a.py:2", "2 classes are called `_Row`: rename all but one"),
        Finding("Place", "bus/a.py:1", "2 classes are called `Place`: rename all but one"),
        Finding("_Row", "ops/b.py:4", "2 classes are called `_Row`: rename all but one"),
        Finding("Place", "ops/b.py:2", "2 classes are called `Place`: rename all but one"),
    ]


def test_facts_and_effects_of_rows_may_share_a_name():
    """Their names are on the wire: facts are read by family, and an effect's name is its tag."""
    modules = [
        written("schemas/facts/turn.py", 'class Failed(Fact, tag="turn.failed.v1"): ...'),
        written("schemas/facts/tool.py", 'class Failed(Fact, tag="tool.failed.v1"): ...'),
        written("schemas/errors.py", "class Failed(Exception): ..."),
        written("actors/rows.py", "class RowEffect(Struct, tag=True): ..."),
        written("actors/a.py", "class _OfA(RowEffect): ...\nclass Notice(_OfA): ..."),
        written("actors/b.py", "class Notice(rows.RowEffect): ..."),
    ]
    assert not list(repeated_classes(modules))
    twice = written("schemas/facts/peer.py", "class _Row(Fact): ...\nclass _Row(Fact): ...")
    assert counted(repeated_classes([*modules, twice])) == {"_Row": 2}


@pytest.mark.parametrize(
    "name",
    [
        *("asked", "telling", "driven", "given", "going_on", "kept_files", "approval_asking"),
        *("past", "unread", "routing", "listing", "ended", "stopping", "matching", "_taken"),
    ],
)
def test_no_module_is_called_by_a_participle_of_an_everyday_verb(name: str):
    found = list(participle_modules([f"bus/{name}.py"]))
    assert [finding.key for finding in found] == [f"bus/{name}.py"]


@pytest.mark.parametrize(
    "name",
    [
        *("signing", "webhook_signing", "rendering", "logging", "wiring", "settings", "string"),
        *("testing", "meeting", "spelling", "time_parsing", "frame_counting", "feed"),
        *("memory_tuning",),
        *("model_routing_machine", "recorded", "retrying_request", "rebuilt_session", "typed_ids"),
        *("provisioning", "shared_build", "ordered_consumer", "__init__", "__main__"),
    ],
)
def test_a_module_may_be_called_by_an_activity_that_is_a_noun_of_the_field(name: str):
    assert participle(name) == ""


def test_only_the_whole_name_of_a_tests_module_counts():
    paths = ["tests/bus/test_asking.py", "tests/bus/waiting.py", "tests/bus/test_who_is_asked.py"]
    assert [finding.key for finding in participle_modules(paths)] == paths[:2]


def test_no_function_has_an_everyday_name_with_or_without_underscores():
    text = """
class Line:
    def take(self): ...
    async def _take(self):
        def told(): ...
    def take_pending(self): ...
def retake(): ...
"""
    found = counted(everyday_methods([written("bus/commands/partition_consumer.py", text)]))
    assert list(found) == ["Line._take", "Line._take.told", "Line.take"]


def test_names_are_read_word_by_word():
    assert words("_HTTPServer2_forNats") == ["http", "server", "2", "for", "nats"]
    assert [wrong for wrong, _ in synonyms("NatsDoor", SYNONYMS)] == ["door"]
    assert [wrong for wrong, _ in synonyms("_give_up", SYNONYMS)] == ["give up"]
    assert not list(synonyms("outdoor_givens_update", SYNONYMS))


def test_no_name_has_a_synonym_of_a_word_of_the_glossary():
    text = "class NatsDoor:\n def _give_up(): ...\n def __told__(): ...\n def tell(): ..."
    module = written("actors/views/own_stretch.py", text)
    assert counted(synonyms_in_names([module])) == {
        "class NatsDoor": 1,
        "def _give_up": 1,
        "folder views": 1,
        "module own_stretch": 1,
    }
    (found,) = synonyms_in_names([written("bus/a.py", "class Crews: ...")])
    assert (found.where, found.do) == (
        "bus/a.py:1",
        "rename class `Crews`: say `tool workers` for `crews`",
    )


def test_names_of_facts_and_of_effects_of_rows_are_the_wires():
    modules = [
        written("schemas/facts/session.py", 'class Standing(Fact, tag="session.standing.v1"): ...'),
        written("actors/rows.py", "class RowEffect(tag=True): ...\nclass Told(RowEffect): ..."),
    ]
    assert not list(synonyms_in_names(modules))


def test_helpers_of_tests_keep_to_the_glossary():
    texts = {
        "tests/chaos/till.py": "class Weather:\n    ...\nclass Plain: ...\n",
        "tests/bus/test_every_door.py": "    class Door: ...\n",
    }
    assert counted(synonyms_in_tests(texts)) == {
        "class Weather": 1,
        "module every_door": 1,
        "module till": 1,
    }


def test_the_subject_of_a_tests_name_is_a_thing_of_the_glossary():
    texts = {
        "tests/a.py": "def test_whoever_asks_is_told(): ...\nasync def test_nobody_stands(): ...\n",
        "tests/b.py": "def nobody_in_a_helper(): ...\ndef test_the_client_gets_a_reply(): ...\n",
    }
    found = counted(synonyms_in_test_names(texts))
    assert found == {"nobody": 1, "stands": 1, "told": 1, "whoever": 1}
    assert SYNONYMS.keys() >= NOT_IN_TEST_NAMES


def test_no_fact_is_named_by_a_string_outside_schemas():
    text = """
if name == "turn.failed" or name in {"turn.failed.v1", b"turn.parked"}: ...
said = "the turn.failed and went on"
"""
    modules = [written("ops/cli/lanes.py", text), written("schemas/facts/turn.py", text)]
    found = list(fact_literals(modules, ["turn.failed.v1", "turn.parked.v12"]))
    assert counted(found) == {"turn.failed": 2, "turn.parked": 1}
    assert {finding.where for finding in found} == {"ops/cli/lanes.py:2"}
