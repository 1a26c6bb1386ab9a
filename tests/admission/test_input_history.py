"""The memory of ended inputs: bounded, persistent, and the same after every rebuild."""

from __future__ import annotations

from msgspec.structs import replace

from rookery.actors.admission.state import (
    ENDED_INPUTS_MAX,
    ENDED_MS,
    Admission,
    EndedInput,
    EndedInputs,
    dump,
    load,
)
from rookery.schemas.run import ErrorObject, SessionMeta


def ended(number: int, at_ms: int = 0, **more: str) -> EndedInput:
    names = {"run_id": f"run-{number}", "command_id": f"command-{number}", **more}
    return EndedInput(input_id=f"input-{number}", state="committed", ended_at_ms=at_ms, **names)


def test_adding_leaves_the_old_memory_as_it_was() -> None:
    one = EndedInputs().add(ended(1))
    two = one.add(ended(2))
    assert (len(one), len(two)) == (1, 2)
    assert one.of_run("run-2") is None
    assert two.of_run("run-2") == two.of_command("command-2") == ended(2)


def test_no_more_than_ten_thousand_are_remembered_oldest_forgotten_first() -> None:
    memory = EndedInputs()
    for number in range(ENDED_INPUTS_MAX + 3):
        memory = memory.add(ended(number))
    assert len(memory) == ENDED_INPUTS_MAX == 10_000
    assert memory.of_run("run-2") is None
    assert memory.of_command("command-2") is None
    assert memory.of_run("run-3") is not None


def test_a_day_after_its_end_an_input_is_forgotten() -> None:
    memory = EndedInputs().add(ended(1, at_ms=5)).add(ended(2, at_ms=5 + ENDED_MS))
    assert len(memory) == 2
    memory = memory.add(ended(3, at_ms=6 + ENDED_MS))
    assert [found.input_id for found in memory] == ["input-2", "input-3"]


def test_an_id_used_again_after_it_was_forgotten_belongs_to_its_later_use() -> None:
    memory = EndedInputs().add(ended(1)).add(ended(2, at_ms=9, command_id="command-1"))
    memory = memory.add(ended(3, at_ms=1 + ENDED_MS))
    assert len(memory) == 2
    assert memory.of_command("command-1") == ended(2, at_ms=9, command_id="command-1")


def test_a_snapshot_brings_back_the_whole_state() -> None:
    error = ErrorObject(code="SESSION_CLOSED", message="gone", hint="again")
    memory = EndedInputs().add(ended(1)).add(replace(ended(2), error=error, reply_to=("inbox",)))
    state = Admission(meta=SessionMeta(id="s"), ended=memory, generation=3)
    assert load(dump(state)) == state
    assert load(dump(state)) != replace(state, ended=EndedInputs())
