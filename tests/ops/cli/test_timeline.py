"""The timeline of recorded runs is the same on every machine.

``ROOKERY_REDRAW=1 pytest tests/ops/cli/test_timeline.py`` writes the golden files again.
"""

from __future__ import annotations

import os

import pytest
from rich.console import Console

from rookery.ops.cli.rendering.fact_words import RunFact, facts_of_run
from rookery.ops.cli.rendering.timeline import PLAIN_GLYPHS, draw_timeline, duration
from rookery.schemas.replies import RunView
from tests.projections.fact_builders import RECORDED, FactHistory, runs_of

WIDTHS = (80, 140)


def recorded(name: str) -> tuple[RunView, list[RunFact]]:
    """The last run of a recorded session."""
    history = FactHistory.recorded(name)
    view = runs_of(history).runs[0]
    return view, facts_of_run(view.run_id, history.messages)


def drawn(name: str, width: int) -> list[str]:
    return [line.plain for line in draw_timeline(*recorded(name), width)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["shop", "till"])
def test_a_recorded_run_is_drawn_as_its_golden_file(name: str, width: int):
    text = "\n".join(drawn(name, width)) + "\n"
    golden = RECORDED / f"{name}.{width}.txt"
    if os.environ.get("ROOKERY_REDRAW"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["shop", "till"])
@pytest.mark.parametrize("width", [40, 50, 63, 64, 80, 109, 110, 200])
def test_no_line_is_wider_than_the_terminal_and_no_id_is_broken(name: str, width: int):
    view, _ = recorded(name)
    lines = drawn(name, width)
    assert max(map(len, lines)) <= max(width, 42)
    if view.waits_for is not None:
        (operation,) = view.waits_for.operation_ids
        assert any(operation in line for line in lines)
        assert any(view.run_id in line for line in lines)


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_every_fact_is_drawn_with_its_sequence(width: int):
    _, facts = recorded("shop")
    words = {word for line in drawn("shop", width) for word in line.split()}
    assert {fact.position for fact in facts} <= words


@pytest.mark.parametrize("width", [80, 140])
def test_a_surface_has_a_lane_of_its_own(width: int):
    view, facts = recorded("shop")
    facts = [
        fact._replace(fields={**fact.fields, "surface": "desk"})
        if fact.fields.get("surface")
        else fact
        for fact in facts
    ]
    title, *lines = [line.plain for line in draw_timeline(view, facts, width)]
    titles = title.split()[2:]
    assert titles[titles.index("desk") - 1].startswith("tool")
    column = title.index("desk")
    called = [line for line in lines if "price #1 of desk is called" in line]
    assert called
    assert {line[column] for line in called} == {"●"}
    assert max(map(len, lines)) <= width


def test_what_is_waited_for_is_drawn_as_waiting():
    lines = drawn("shop", 80)
    assert any("┊" in line and "waits for the session" in line for line in lines)
    assert any("│" in line and "waits for price #1, price #2" in line for line in lines)


def test_a_terminal_without_those_signs_gets_others():
    text = "\n".join(line.plain for line in draw_timeline(*recorded("till"), 80, PLAIN_GLYPHS))
    assert text.isascii()


def test_colour_is_for_terminals_that_want_it():
    def printed(**how: object) -> str:
        console = Console(width=80, _environ={}, **how)
        with console.capture() as capture:
            for line in draw_timeline(*recorded("shop"), 80):
                console.print(line, soft_wrap=True)
        return capture.get()

    assert "\x1b[3" in printed(force_terminal=True, color_system="standard")
    assert "\x1b[3" not in printed(force_terminal=True, no_color=True)
    assert "\x1b" not in printed(force_terminal=False)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.000 s"),
        (59_999, "59.999 s"),
        (61_000, "1 m 01 s"),
        (3_660_000, "1 h 01 m"),
        (90_000_000, "1 d 01 h"),
    ],
)
def test_durations_have_at_most_two_units(ms: int, text: str):
    assert duration(ms) == text
