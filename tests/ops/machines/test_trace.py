"""``rookery machine``: what people and tests from outside type, and what they may rely on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.machine_catalogue import MACHINE_CATALOGUE
from rookery.ops.cli import main
from tests.machines.oracle import MODEL

ATTACHED = {"phase": "Attached", "session_id": "s"}
START = {
    "run_id": "r",
    "primitive_kind_in": "ConversationTurn",
    "shape": "ConversationAndContext",
    "vision": False,
    "image_results": True,
    "max_retries": 1,
}


def step(machine: str, on: str, **params: Any) -> dict[str, Any]:
    return {"machine": machine, "input": on, "params": params}


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a trace by the command; its exit code and what it printed, decoded."""

    def ran(trace: Any, *options: str) -> tuple[int, Any]:
        file = tmp_path / "trace.json"
        file.write_text(trace if isinstance(trace, str) else json.dumps(trace))
        code = main(["machine", "run", "--trace", str(file), "--json", *options])
        return code, json.loads(capsys.readouterr().out)

    return ran


def test_a_trace_answers_every_step_in_its_turn(run: Any) -> None:
    code, (started, refused) = run(
        {
            "given": {"host": ATTACHED},
            "steps": [
                step("turn_execution", "start_conversation_run", **START),
                step("turn_execution", "boundary_continue"),
            ],
        }
    )
    assert code == 0
    assert started["ok"] is True
    assert started["effects"] == [{"name": "TurnRunStarted", "fields": {"run_id": "r"}}]
    assert set(started) == {"ok", "effects", "state", "host"}
    variables = {*MODEL["turn_execution"]["variables"], "phase"}
    assert set(started["state"]) == variables
    assert started["state"]["admitted_content_shape"] == "ConversationAndContext"
    assert refused == {
        "ok": False,
        "rejection": {
            "kind": "GuardRejected",
            "context": "TurnStateHandle::boundary_continue",
            "reason": "guard rejected transition from phase Running for boundary_continue",
        },
        "state": started["state"],
        "host": started["host"],
    }


def test_all_machines_of_a_trace_share_one_host(run: Any) -> None:
    _, answers = run(
        [
            {
                "steps": [
                    step("session_lifecycle", "Initialize"),
                    step("session_lifecycle", "RegisterSession", session_id_in="s"),
                    step("session_lifecycle", "EnsureSessionWithExecutor", session_id_in="s"),
                    step("turn_execution", "start_immediate_append", run_id="r"),
                    step("turn_execution", "fatal_failure", cause_kind="ToolFailure", error="e"),
                    step("session_admission", "fail_run", run_id="r"),
                    step("comms_drain", "ensure_drain_running"),
                ]
            },
            {"steps": [step("session_context", "context_advanced", updated_at_ms=1)]},
        ]
    )
    first, second = answers
    assert [answer["host"]["phase"] for answer in first] == [
        *("Idle", "Idle", "Attached", "Running", "Running", "Attached", "Attached")
    ]
    assert first[3]["host"]["pre_run_phase"] == "Attached"
    assert first[5]["effects"] == [{"name": "RecordTerminalOutcome", "fields": {}}]
    assert first[5]["state"] == {"phase": "Attached"}
    assert second[0]["rejection"]["kind"] == "GuardRejected", "a trace begins where nothing is"


def test_a_trace_begins_in_its_given_state(run: Any) -> None:
    given = {
        "host": {**ATTACHED, "silent_intents": ["b", "a"]},
        "state": {
            "external_tool_surface": {
                "base_state": {"s": "Removing"},
                "known_surfaces": ["s"],
                "inflight_calls": {"s": 1},
                "removal_timeout_ms": 5,
            },
            "turn_execution": {"phase": "Completed", "terminal_cause_kind": "LlmFailure"},
        },
    }
    steps = [
        step("external_tool_surface", "call_finished", surface_id="s"),
        step("external_tool_surface", "finalize_removal_clean", surface_id="s"),
        step("turn_execution", "start_immediate_context", run_id="r"),
    ]
    _, (finished, finalized, started) = run({"given": given, "steps": steps})
    assert finished["state"]["inflight_calls"] == {"s": 0}
    assert finished["host"]["silent_intents"] == ["a", "b"]
    names = [effect["name"] for effect in finalized["effects"]]
    assert names == ["CloseSurfaceConnection", "RefreshVisibleSurfaceSet", "EmitExternalToolDelta"]
    assert list(finalized["effects"][2]["fields"]) == ["surface_id", "operation", "phase", "cause"]
    assert finalized["state"]["base_state"] == {"s": "Removed"}
    assert started["state"]["terminal_cause_kind"] is None


def test_a_keyed_machine_shows_the_map_it_keeps(run: Any) -> None:
    _, answers = run(
        {
            "given": {
                "host": ATTACHED,
                "state": {"interaction_stream": {"streams": {"z": "Attached"}}},
            },
            "steps": [
                step("interaction_stream", "reserved", corr_id="a"),
                step("interaction_stream", "closed_early", corr_id="z"),
                step("session_claim", "try_acquire", session_id="q"),
            ],
        }
    )
    assert [answer["state"] for answer in answers] == [
        {"streams": {"a": "Reserved", "z": "Attached"}},
        {"streams": {"a": "Reserved"}},
        {"claims": {"q": "Held"}},
    ]
    assert answers[2]["host"]["session_id"] == "s", "a claim is no registration"


def test_the_edition_is_the_traces_own_or_else_the_commands(run: Any) -> None:
    state = {"turn_execution": {"phase": "DrainingBoundary", "cancel_after_boundary": True}}
    trace = {
        "given": {"host": {"phase": "Running", "current_run_id": "r"}, "state": state},
        "steps": [step("turn_execution", "boundary_continue")],
    }
    assert run(trace)[1][0]["state"]["phase"] == "Cancelled"
    assert run(trace, "--edition", "seed")[1][0]["state"]["phase"] == "CallingLlm"
    trace["edition"] = "head"
    assert run(trace, "--edition", "seed")[1][0]["state"]["phase"] == "Cancelled"


@pytest.mark.parametrize("edition", ["head", "seed"])
def test_an_input_no_row_knows_is_an_answer(run: Any, edition: str) -> None:
    asked = "callback_pending" if edition == "seed" else "callback_awaited"
    code, (answer,) = run({"edition": edition, "steps": [step("turn_execution", asked)]})
    assert code == 0
    assert answer["rejection"]["kind"] == "NoMatchingTransition"
    assert answer["rejection"]["context"] == f"TurnStateHandle::{asked}"


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("{", "not a trace"),
        ('{"steps": 3}', "not a trace"),
        ({"steps": [], "given": {"hosts": {}}}, "hosts"),
        ({"edition": "tail", "steps": []}, "edition"),
        ({"steps": [step("turn", "prepare")]}, "steps[0]: there is no machine 'turn'"),
        ({"given": {"state": {"turn": {}}}}, "given: there is no machine 'turn'"),
        ({"given": {"host": {"colour": 1}}}, "given: there is no variable 'colour'"),
        ({"given": {"host": {"phase": "Tired"}}}, "given: Invalid enum value 'Tired'"),
        ({"given": {"state": {"comms_drain": {"phase": 3}}}}, "given: "),
        ({"given": {"state": {"comms_drain": {"host": {}}}}}, "no variable 'host'"),
        (
            {"steps": [step("comms_drain", "stop_drain"), step("comms_drain", "spawn_drain")]},
            "steps[1]",
        ),
        ({"steps": [step("comms_drain", "spawn_drain", mode="Slow")]}, "Invalid enum value 'Slow'"),
        ({"steps": [step("comms_drain", "stop_drain", now=True)]}, "no parameter 'now'"),
        ({"steps": [step("session_admission", "prepare")]}, "steps[0]: prepare needs run_id"),
    ],
)  # fmt: skip
def test_an_invalid_trace_is_refused_with_the_place_of_the_error(
    run: Any, trace: Any, message: str
) -> None:
    code, answer = run(trace)
    assert code == 2
    assert answer["error"]["code"] == "INVALID_ARGUMENT"
    assert message in answer["error"]["message"]


def test_a_trace_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "run", "--trace", "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err


def test_without_json_a_trace_answers_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trace.json"
    file.write_text(json.dumps([{"steps": [step("session_lifecycle", "Initialize")]}]))
    assert main(["machine", "run", "--trace", str(file)]) == 0
    ((answer,),) = json.loads(capsys.readouterr().out)
    assert answer["state"] == answer["host"]


# --- list, show, check ----------------------------------------------------------------------------


def test_all_machines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == list(MACHINE_CATALOGUE)
    assert main(["machine", "list", "--edition", "seed"]) == 0
    assert "turn_execution " in capsys.readouterr().out


def test_a_machine_is_shown_with_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    for name, model in MODEL.items():
        assert main(["machine", "show", name, "--edition", "seed", "--json"]) == 0
        message = json.loads(capsys.readouterr().out)
        rows = sorted(row for on in message["inputs"] for row in on["rows"])
        assert rows == sorted(row["name"] for row in model["transitions"]), name
    assert main(["machine", "show", "comms_drain"]) == 0
    assert "peer.drain_spawned.v1" in capsys.readouterr().out


def test_a_diagram_is_drawn_from_what_the_code_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "show", "peer_interaction_inbound", "--diagram"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "stateDiagram-v2",
        "    [*] --> absent",
        "    absent --> Received: request_received",
        "    Received --> absent: response_replied",
    ]


def test_a_machine_is_checked_by_exploring_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", "check", "session_turn_admission", "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)
    assert checked["violations"] == []
    assert (checked["states"], checked["transitions"], checked["depth"]) == (26, 419, 6)
    assert main(["machine", "check", "session_claim", "--edition", "seed"]) == 0
    assert "ok" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["show", "check"])
def test_an_unknown_machine_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machine", command, "coffee"]) == 2
    assert "there is no machine 'coffee'" in capsys.readouterr().err
