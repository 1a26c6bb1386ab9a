"""What all machines share: which transition accepts an input, what folding reads, how rejections
read."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest

from rookery.actors.admission.admission_machine import ADMISSION
from rookery.actors.admission.lifecycle_machine import LIFECYCLE
from rookery.actors.kernel.machines.machine import (
    Edition,
    HostPhase,
    Machine,
    MachineInput,
    RejectionKind,
    SessionHost,
    Transition,
    TransitionRejected,
    set_fields,
)
from rookery.schemas.errors import Refused

IDLE = HostPhase.IDLE
SEED, HEAD = Edition


class Pressed(msgspec.Struct, frozen=True, kw_only=True):
    row: str = ""


class Light(msgspec.Struct, frozen=True, kw_only=True):
    phase: str = "Off"


SAMPLE = Machine(
    "sample",
    handle="SampleHandle",
    phases=("Off", "On", "Broken"),
    initial=Light(),
    inputs={"press": MachineInput(Pressed)},
    rows=(
        Transition(
            "PressOn", "press", lambda s, _: s.phase == "Off", set_fields(phase="On"), edition=SEED
        ),
        Transition(
            "PressBreaks",
            "press",
            lambda s, _: s.phase == "Off",
            set_fields(phase="Broken"),
            edition=HEAD,
        ),
        Transition(
            "PressOff", "press", lambda s, _: s.phase in ("Off", "On"), set_fields(phase="Off")
        ),
    ),
)


def test_the_first_row_that_holds_takes_the_input() -> None:
    asked = SAMPLE.decide(Light(), "press", Pressed(), edition=SEED)
    assert (asked.row, SAMPLE.evolve(Light(), asked).phase) == ("PressOn", "On")
    assert SAMPLE.decide(Light(phase="On"), "press", Pressed()).row == "PressOff"


def test_history_is_folded_whatever_edition_wrote_it() -> None:
    by_seed = SAMPLE.decide(Light(), "press", Pressed(), edition=SEED)
    by_head = SAMPLE.decide(Light(), "press", Pressed(), edition=HEAD)
    assert SAMPLE.evolve(Light(), by_seed).phase == "On"
    assert SAMPLE.evolve(Light(), by_head).phase == "Broken"


def test_a_rejection_reads_as_the_contract_says() -> None:
    with pytest.raises(TransitionRejected) as rejected:
        ADMISSION.decide(
            SessionHost(phase=IDLE), "prepare", ADMISSION.candidate("prepare", {"run_id": "r"})
        )
    error = pickle.loads(pickle.dumps(rejected.value))
    assert (error.context, error.kind) == ("SessionAdmissionHandle::prepare", "GuardRejected")
    assert error.reason == "guard rejected transition from phase Idle for prepare"
    assert str(error) == f"DSL transition rejected in {error.context}: {error.reason}"
    assert error.code == "GUARD_REJECTED"


def test_an_input_no_row_knows_is_no_matching_transition() -> None:
    for ask in (
        lambda: ADMISSION.candidate("explode", {}),
        lambda: ADMISSION.decide(SessionHost(), "explode", Pressed()),
    ):
        with pytest.raises(TransitionRejected) as rejected:
            ask()
        assert rejected.value.kind is RejectionKind.NO_MATCHING_TRANSITION
        assert rejected.value.code == "NO_MATCHING_TRANSITION"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"run_id": "r", "reply_to": "x"}, "UNKNOWN_FIELD"),
        ({"run": "r"}, "UNKNOWN_FIELD"),
        ({"run_id": 7}, "INVALID_ARGUMENT"),
    ],
)
def test_parameters_from_outside_are_checked(params: dict[str, Any], code: str) -> None:
    with pytest.raises(Refused) as refused:
        ADMISSION.candidate("prepare", params)
    assert refused.value.code == code


def test_a_fence_token_is_unsigned() -> None:
    bindings = {"agent_runtime_id": "r", "fence_token": -1, "generation": 0, "session_id_in": "s"}
    with pytest.raises(Refused, match="fence_token"):
        LIFECYCLE.candidate("PrepareBindings", bindings)


def test_two_rows_of_one_name_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="share a name"):
        Machine(
            "sample",
            handle="Sample",
            phases=("Off",),
            initial=Light(),
            inputs={"press": MachineInput(Pressed)},
            rows=(SAMPLE.transitions[0], SAMPLE.transitions[0]),
        )
