"""The window of duplicates: one day and 10,000 commands, in the time of facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.kernel.entities.entity import DEDUP_COMMANDS_MAX, DEDUP_MS, DedupWindow


def test_a_command_is_known_for_a_day():
    memory = DedupWindow()
    memory.add("old", "d", 0)
    memory.add("new", "d", DEDUP_MS)
    assert memory.digest_of("old") == "d"
    memory.add("newer", "d", DEDUP_MS + 1)
    assert (memory.digest_of("old"), memory.digest_of("new")) == (None, "d")


def test_no_more_than_ten_thousand_are_known():
    memory = DedupWindow()
    for number in range(DEDUP_COMMANDS_MAX + 5):
        memory.add(f"c{number}", "d", 0)
    assert len(memory) == DEDUP_COMMANDS_MAX
    assert (memory.digest_of("c4"), memory.digest_of("c5")) == (None, "d")


def test_the_first_body_of_an_id_counts():
    memory = DedupWindow()
    memory.add("x", "first", 0)
    memory.add("x", "second", 1)
    assert memory.digest_of("x") == "first"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3 * DEDUP_MS))))
def test_the_latest_command_is_always_known_whatever_clocks_do(story: list[tuple[str, int]]):
    memory = DedupWindow()
    for command_id, at_ms in story:
        memory.add(command_id, "d", at_ms)
        assert memory.digest_of(command_id) == "d"
    assert list(DedupWindow(memory)) == list(memory)
