"""Allow-lists may only shrink, and the census counts what there is."""

from __future__ import annotations

import pytest

from tests.laws.census import LAWS, main, numbers
from tests.laws.findings import Finding, judged, read, shrunk, toml, unsettled
from tests.laws.vocabulary import SETTLED

FOUND = [Finding("Place", f"bus/{name}.py:1", "rename it") for name in "ab"]


def test_what_is_not_allowed_is_named_with_what_to_do():
    assert judged("law", FOUND, {}) == ["bus/a.py:1: rename it", "bus/b.py:1: rename it"]
    assert judged("law", FOUND, {"Place": 1}) == [
        "bus/a.py:1: rename it",
        "bus/b.py:1: rename it",
        "  (law allows `Place` 1, now 2: undo what is new)",
    ]


def test_what_is_allowed_is_not_named():
    assert not judged("law", FOUND, {"Place": 2})
    assert not judged("law", FOUND, {"Place": 1}, {"Place": (1, "it is Python's")})


@pytest.mark.parametrize("key", ["Place", "Gone"])
def test_an_entry_that_is_not_needed_has_to_go(key: str):
    (line,) = judged("law", FOUND, {"Place": 2} | {key: 3})
    assert line.startswith(f"allowed.toml: law allows `{key}` 3, ")
    assert line.endswith("left: run `python -m tests.laws.census --shrink`")


def test_what_is_settled_has_to_be_there():
    (line,) = judged("law", FOUND, {}, {"Place": (3, "it is Python's")})
    assert line == "vocabulary.py: `Place` is settled for law 3 times, and found 2"
    assert unsettled({"Place": 3, "Line": 1}, {"Place": (2, ""), "Line": (1, "")}) == {"Place": 1}
    assert SETTLED.keys() <= LAWS.keys()


def test_a_list_is_written_anew_unless_it_grows():
    assert shrunk({"new/path.py": 1}, {"old/path.py": 1}) == {"new/path.py": 1}
    assert shrunk({}, {"a": 2}) == {}
    assert shrunk({"a": 2, "b": 1}, {"a": 2}) is None


def test_the_file_of_the_lists_is_read_as_it_is_written(tmp_path):
    lists = {"reasons": {"bus/a.py": 'one "table"'}, "law": {"def _told": 2}, "empty": {}}
    path = tmp_path / "allowed.toml"
    path.write_text(toml(lists), encoding="utf-8")
    assert read(path) == lists
    assert toml(read()) == toml(read() | {})
    assert set(read()) == {"reasons_for_long_files", *LAWS}


def test_the_census_says_what_is_compared_before_and_after(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    printed = capsys.readouterr().out
    for what, number in numbers():
        assert f"{what}: " in printed
        assert number in printed


def test_the_findings_of_a_law_can_be_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["--list", "crowded_folders"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(listed) == len(list(LAWS["crowded_folders"]()))
