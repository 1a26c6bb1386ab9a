"""The history of ended inputs: bounded, persistent, and equal after every rebuild."""

from __future__ import annotations

from msgspec.structs import replace

from rookery.actors.admission.state import (
    HISTORY_INPUTS_MAX,
    HISTORY_MS,
    Admission,
    EndedInput,
    InputHistory,
    decode_state,
    encode_state,
)
from rookery.schemas.run import ErrorObject, SessionMeta


def ended(number: int, at_ms: int = 0, **more: str) -> EndedInput:
    names = {"run_id": f"run-{number}", "command_id": f"command-{number}", **more}
    return EndedInput(input_id=f"input-{number}", state="committed", ended_at_ms=at_ms, **names)


def test_adding_leaves_the_old_memory_as_it_was() -> None:
    one = InputHistory().add(ended(1))
    two = one.add(ended(2))
    assert (len(one), len(two)) == (1, 2)
    assert one.input_of_run("run-2") is None
    assert two.input_of_run("run-2") == two.input_of_command("command-2") == ended(2)


def test_no_more_than_ten_thousand_are_remembered_oldest_forgotten_first() -> None:
    memory = InputHistory()
    for number in range(HISTORY_INPUTS_MAX + 3):
        memory = memory.add(ended(number))
    assert len(memory) == HISTORY_INPUTS_MAX == 10_000
    assert memory.input_of_run("run-2") is None
    assert memory.input_of_command("command-2") is None
    assert memory.input_of_run("run-3") is not None


def test_a_day_after_its_end_an_input_is_forgotten() -> None:
    memory = InputHistory().add(ended(1, at_ms=5)).add(ended(2, at_ms=5 + HISTORY_MS))
    assert len(memory) == 2
    memory = memory.add(ended(3, at_ms=6 + HISTORY_MS))
    assert [found.input_id for found in memory] == ["input-2", "input-3"]


def test_an_id_used_again_after_it_was_forgotten_belongs_to_its_later_use() -> None:
    memory = InputHistory().add(ended(1)).add(ended(2, at_ms=9, command_id="command-1"))
    memory = memory.add(ended(3, at_ms=1 + HISTORY_MS))
    assert len(memory) == 2
    assert memory.input_of_command("command-1") == ended(2, at_ms=9, command_id="command-1")


def test_a_snapshot_brings_back_the_whole_state() -> None:
    error = ErrorObject(code="SESSION_CLOSED", message="gone", hint="again")
    memory = InputHistory().add(ended(1)).add(replace(ended(2), error=error, reply_to=("inbox",)))
    state = Admission(meta=SessionMeta(id="s"), ended=memory, generation=3)
    assert decode_state(encode_state(state)) == state
    assert decode_state(encode_state(state)) != replace(state, ended=InputHistory())
