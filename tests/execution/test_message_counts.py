"""How many messages of the journal a run is."""

from __future__ import annotations

from msgspec.structs import replace

from rookery.actors.admission import AdmissionDecider, InFlightCounter
from rookery.schemas.facts.session import RunFailed
from tests.execution.scripted_driver import CODECS, SESSION, ScriptedWorld


def messages_of_third_run(script: str) -> list[list[str]]:
    """The messages from the third run of a script in a session, each of which follows at once."""
    with ScriptedWorld() as world:
        world.begin()
        before = 0
        for _ in range(3):
            before = len(world.stored("", SESSION))
            asked = world.play(script)
            world.until(lambda asked=asked: asked.answers)
        return [
            [
                str(fact.__struct_config__.tag).removesuffix(".v1")
                for fact in CODECS[stored.entity.family].decode(stored.body)
            ]
            for stored in world.stored("", SESSION)[before:]
        ]


def test_a_run_without_calls_is_two_messages():
    assert messages_of_third_run("answer") == [
        ["session.run_committed", "session.input_accepted", "session.run_prepared"],
        [
            "turn.started",
            "turn.primitive_applied",
            "turn.terminal_returned",
            "turn.boundary_completed",
            "turn.completed",
        ],
    ]


def test_a_run_with_ten_sequential_calls_is_twelve_messages():
    messages = messages_of_third_run("call_ten_times")
    assert len(messages) == 12, "admission's, one for each call, and the end"
    assert messages[0][-1] == "session.run_prepared"
    assert messages[1][:3] == ["turn.started", "turn.primitive_applied", "turn.tool_calls_returned"]
    for following in messages[2:]:
        assert following[0] == "tool.completed", "with the step that continues with it"
    assert messages[-1][-1] == "turn.completed"


def test_an_end_without_a_last_fact_of_its_turn_does_not_wait():
    decider = AdmissionDecider(queued_max=9, in_flight_max=9, realm_load=InFlightCounter())
    state, lost = decider.initial(SESSION), RunFailed(row="", run="r")
    assert decider.hold_s(state, [lost]) == 0
    assert decider.hold_s(state, [replace(lost, ended_at_sequence=7)]) > 0


def test_the_end_of_a_run_does_not_wait_for_long():
    with ScriptedWorld() as world:
        world.begin()
        world.play("answer")
        world.until(lambda: "completed" in world.kinds("turn"))
        world.pass_s(1)
        assert world.kinds("session")[-1] == "run_committed"
