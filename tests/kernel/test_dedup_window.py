"""How long a repeat is known: a day, and ten thousand commands, in the time of facts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.kernel.dedup import MEMORY_COMMANDS_MAX, MEMORY_MS, CommandMemory


def test_a_command_is_known_for_a_day():
    memory = CommandMemory()
    memory.remember("old", "d", 0)
    memory.remember("new", "d", MEMORY_MS)
    assert memory.recall("old") == "d"
    memory.remember("newer", "d", MEMORY_MS + 1)
    assert (memory.recall("old"), memory.recall("new")) == (None, "d")


def test_no_more_than_ten_thousand_are_known():
    memory = CommandMemory()
    for number in range(MEMORY_COMMANDS_MAX + 5):
        memory.remember(f"c{number}", "d", 0)
    assert len(memory) == MEMORY_COMMANDS_MAX
    assert (memory.recall("c4"), memory.recall("c5")) == (None, "d")


def test_the_first_body_of_an_id_counts():
    memory = CommandMemory()
    memory.remember("x", "first", 0)
    memory.remember("x", "second", 1)
    assert memory.recall("x") == "first"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3 * MEMORY_MS))))
def test_the_latest_command_is_always_known_whatever_clocks_do(story: list[tuple[str, int]]):
    memory = CommandMemory()
    for command_id, at_ms in story:
        memory.remember(command_id, "d", at_ms)
        assert memory.recall(command_id) == "d"
    assert list(CommandMemory(memory)) == list(memory)
