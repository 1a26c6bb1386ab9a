"""Results that are not plain JSON: a last value takes its evident form, an assigned one is
strict."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.schemas.run import ResultKind
from tests.sandbox.session_fixture import Stage

SETUP = """
import array, collections, dataclasses, datetime as dt, decimal, enum, fractions, pathlib, types
import uuid
@dataclasses.dataclass
class Point:
    x: int
    tags: set
Pair = collections.namedtuple('Pair', 'a b')
class Color(enum.Enum): RED = 'red'
class Level(enum.IntEnum): LOW = 1
class Own:
    def __repr__(self): return '<Own>'
"""
CONVERTED = [
    ("1, 'a', (2.5, None)", [1, "a", [2.5, None]]),
    ("{3, 1, 2}", [1, 2, 3]),
    ("frozenset({'b', 'a'})", ["a", "b"]),
    ("{1, 'a'}", [1, "a"]),
    ("Point(1, {2})", {"x": 1, "tags": [2]}),
    ("[Pair(1, (2,))]", [{"a": 1, "b": [2]}]),
    ("dt.date(2024, 2, 29)", "2024-02-29"),
    ("dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)", "2024-02-29T12:00:00+00:00"),
    ("dt.time(1, 2)", "01:02:00"),
    ("dt.timedelta(days=1, hours=2)", "1 day, 2:00:00"),
    ("decimal.Decimal('0.10')", "0.10"),
    ("fractions.Fraction(1, 3)", "1/3"),
    ("uuid.UUID(int=1)", "00000000-0000-0000-0000-000000000001"),
    ("pathlib.Path('a/b')", "a/b"),
    ("b'\\x00\\xff'", "AP8="),
    ("[Color.RED, Level.LOW]", ["red", 1]),
    ("{1: 'a', None: 'b', True if 0 else 2.5: 'c', (1, 2): 'd'}",
     {"1": "a", "null": "b", "2.5": "c", "(1, 2)": "d"}),
    ("{dt.date(2024, 1, 1): 1, Color.RED: 2}", {"2024-01-01": 1, "red": 2}),
    ("{1: 'a', '1': 'b'}", [[1, "a"], ["1", "b"]]),
    ("range(3)", [0, 1, 2]),
    ("{'a': 1}.keys(), {'a': 1}.values(), {'a': 1}.items()", [["a"], [1], [["a", 1]]]),
    ("collections.deque([1]), collections.defaultdict(set, a={1})", [[1], {"a": [1]}]),
    ("types.SimpleNamespace(a={1})", {"a": [1]}),
    ("array.array('i', [1, 2])", [1, 2]),
]  # fmt: skip
SHOWN = [
    ("Own()", "<Own>"),
    ("[1, Own()]", [1, "<Own>"]),
    ("float('nan'), float('inf')", ["nan", "inf"]),
    ("1 + 2j", "(1+2j)"),
    ("int", "<class 'int'>"),
    ("(n for n in ()).__class__.__name__, len", ["generator", "<built-in function len>"]),
]
STRICT = [
    ("(1, (2,))", [1, [2]]),
    ("{'on': dt.date(2024, 1, 1), 'at': [dt.time(1)]}", {"on": "2024-01-01", "at": ["01:00:00"]}),
    ("[Pair(1, 2)]", [{"a": 1, "b": 2}]),
]


@pytest.mark.parametrize(("code", "value"), CONVERTED)
def test_a_last_value_takes_its_evident_form(stage: Stage, code: str, value: Any):
    stage.run(SETUP)
    outcome = stage.run(code)
    assert (outcome.result, outcome.result_kind) == (value, ResultKind.CONVERTED)


@pytest.mark.parametrize(("code", "value"), SHOWN)
def test_a_value_without_an_evident_form_is_shown_as_its_repr(stage: Stage, code: str, value: Any):
    stage.run(SETUP)
    outcome = stage.run(code)
    assert (outcome.result, outcome.result_kind) == (value, ResultKind.REPR)


def test_plain_json_is_left_as_it_is(stage: Stage):
    outcome = stage.run("{'a': [1, 2.5, None, 'é']}")
    assert outcome.result == {"a": [1, 2.5, None, "é"]}
    assert outcome.result_kind is ResultKind.JSON
    assert not outcome.result_cut


@pytest.mark.parametrize(("code", "value"), STRICT)
def test_tuples_and_dates_may_be_assigned_to_result(stage: Stage, code: str, value: Any):
    stage.run(SETUP)
    outcome = stage.run(f"result = {code}")
    assert (outcome.result, outcome.result_kind) == (value, ResultKind.CONVERTED)


@pytest.mark.parametrize("code", ["{1}", "b'x'", "Own()", "[Point(1, {2})]", "{1: 2}", "Color.RED"])
def test_an_assigned_result_is_a_contract(stage: Stage, code: str):
    stage.run(SETUP)
    for program in (f"result = {code}", f"if True:\n    result: object = {code}"):
        outcome = stage.run(program)
        assert outcome.error is not None
        assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"
        assert outcome.error.hint is not None
        assert "calls of tools" not in outcome.error.message


def test_the_refusal_of_a_result_mentions_the_calls_that_were_made(stage: Stage):
    for program in ("write('a')\nresult = {1}", "await fetch(1)\nresult = float('nan')"):
        outcome = stage.run(program)
        assert outcome.error is not None
        assert outcome.error.code == "RESULT_NOT_SERIALIZABLE"
        assert "1 calls of tools were made before and are not undone" in outcome.error.message
        assert len(outcome.external_calls) == 1
    assert "tools" not in str(stage.run("list_tools()\nresult = {1}").error)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("for result in [{1}, {2}]: pass\n7", 7),
        ("for result in [{1}, {2}]: pass", None),
        ("import json as result\n7", 7),
        ("def result(): pass\n7", 7),
        ("class result: pass\n7", 7),
        ("[result for result in [1, 2]]", [1, 2]),
        ("result, other = {1}, 2", [1]),
        ("def f():\n    global result\n    result = {1}\nf()", [1]),
        ("exec('result = {1}')", [1]),
        ("def f():\n    result = {1}\n    return result\nf()", [1]),
        ("result = 3\nfor result in range(2): pass", 1),
    ],
)
def test_only_a_plain_assignment_makes_result_a_contract(stage: Stage, code: str, value: Any):
    assert stage.value(code) == value


@pytest.mark.parametrize(
    "code",
    [
        "x = []\nx.append(x)\nx",
        "x = ()\nfor _ in range(999): x = (x,)\nx",
        "[(n,) for n in range(60_000)]",
        "[len for _ in range(60_000)]",
        "b'x' * (2 << 20)",
        "('x' * (2 << 20),)",
        "class A:\n    def __repr__(self): return 'x' * 50_000\nA()",
        "9 ** 99_999",
    ],
)
def test_a_deep_or_huge_value_is_cut_with_a_flag(stage: Stage, code: str):
    outcome = stage.run(code, limits={"cpu_ms": 10_000, "wall_ms": 30_000})
    assert outcome.error is None
    assert outcome.result_cut is True
    assert outcome.result_kind in (ResultKind.CONVERTED, ResultKind.REPR)


def test_sys_exit_ends_a_run(stage: Stage):
    assert stage.value("import sys\nresult = (1,)\nsys.exit()") == [1]
    assert stage.value("import sys\nasync def f(): sys.exit(0)\nawait f()") is None
    assert stage.code("raise SystemExit('no')") == "RUNTIME_ERROR"


def test_asyncio_run_at_the_top_level_waits_for_tools_and_elsewhere_for_time(stage: Stage):
    top = "import asyncio\nasync def f(n): return await fetch(n)\n"
    assert stage.value(f"{top}asyncio.run(f(2))") == 4
    assert stage.value(f"{top}if __name__ == '__main__':\n    print(asyncio.run(f(2)))") is None
    assert stage.value("from asyncio import run as go\nx = [go(fetch(n)) for n in (1, 2)]\nx") == [
        2,
        4,
    ]
    inside = "async def g(): return await asyncio.sleep(9, 3)\ndef h(): return asyncio.run(g())\n"
    assert stage.value(f"{top}{inside}h()") == 3
    assert stage.value(f"{top}{inside}[h(), await f(1)]") == [3, 2]
    outcome = stage.run(f"{top}def h(): return asyncio.run(f(1))\nh()")
    assert outcome.error is not None
    assert "fetch() is awaited" in outcome.error.message
