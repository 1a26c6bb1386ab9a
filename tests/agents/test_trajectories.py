"""``rookery runs export --atif``: what a run did, for tools that read trajectories of agents.

The package ``atif``, which is not ours, checks every document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import atif
import msgspec
import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.run_records import TrajectoryFold
from rookery.schemas.agents import CallPart, ConversationMessage, MessageRole
from rookery.schemas.calls import CallArguments
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import model, tool
from rookery.schemas.replies import RunState, RunView
from rookery.schemas.run import Language, SideEffect
from rookery.schemas.seed.lifecycle import ProviderStopReason
from tests.agents.test_prompts import QUESTION, prompting_node
from tests.execution.realm_fixture import Serving
from tests.stock_client import Stock

REALM = "trajectories"


@pytest.fixture(scope="module")
def exporting(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("trajectories")
    with prompting_node(server, folder, REALM) as node:
        yield Serving(server, node, REALM, folder, Role.OPERATOR)


def run(exporting: Serving, session: str, *arguments: str) -> str:
    """The id of a run that has ended, or waits."""
    said = exporting.rookery("run", "--session", session, *arguments)
    return str(msgspec.json.decode(said.out)["run_id"])


def export(exporting: Serving, run_id: str) -> atif.Trajectory:
    said = exporting.rookery("runs", "export", run_id, "--atif")
    assert said.code == 0, said.err
    return checked(msgspec.json.decode(said.out))


def checked(document: Any) -> atif.Trajectory:
    """The document, as the package reads it; it has every field that the package knows of it."""
    trajectory = atif.Trajectory.model_validate(document)
    assert trajectory.to_json_dict() == document
    return trajectory


def test_a_prompt_and_its_calls_are_a_trajectory(exporting: Serving):
    found = export(exporting, run(exporting, "ok", "--prompt", QUESTION))
    asked, called, answered = found.steps
    assert (asked.source, asked.message) == ("user", QUESTION)
    (call,) = called.tool_calls or ()
    assert (call.function_name, call.arguments) == ("price", {"item": "tea"})
    assert called.observation is not None
    (result,) = called.observation.results
    assert (result.source_call_id, result.content) == (call.tool_call_id, "3")
    assert (answered.message, answered.metrics.prompt_tokens) == ("Tea costs 3.", 7)
    assert found.extra == {"status": "ok"}
    assert found.final_metrics.total_cost_usd is None, "no price is known"


def test_a_program_is_a_trajectory_without_a_model(exporting: Serving):
    found = export(exporting, run(exporting, "code", "-e", "price('tea') + price('cake')"))
    calls = [call for step in found.steps for call in step.tool_calls or ()]
    assert [call.arguments for call in calls] == [{"args": ["tea"]}, {"args": ["cake"]}]
    assert {step.llm_call_count for step in found.steps[1:]} == {0}
    assert found.steps[-1].message == "8"


def test_a_run_that_waits_has_one_and_says_for_what(exporting: Serving):
    runs: list[str] = []

    async def ask(client: Stock) -> None:
        answer = await client.ask("run", "waits", {"prompt": "Pay Ann."})
        assert answer.body["status"] == "waiting_for_approval"
        runs.append(answer.body["run_id"])

    exporting.visit(ask)
    (waiting,) = runs
    found = export(exporting, waiting)
    assert found.extra["status"] == "waiting_for_approval"
    (step,) = [step for step in found.steps if step.tool_calls]
    by_name = {
        call.function_name: result.extra
        for call, result in zip(step.tool_calls, step.observation.results, strict=True)
    }
    assert by_name["pay"] == {"status": "open", "waits_for": "WAITING_FOR_APPROVAL"}
    assert by_name["weather"] == {"status": "ok"}
    assert exporting.rookery("runs", "cancel", waiting).code == 0
    cancelled = export(exporting, waiting)
    assert cancelled.extra["status"] == "cancelled"
    assert cancelled.extra["error"]["code"] == "CANCELLED"


def test_a_failed_question_is_in_the_trajectory(exporting: Serving):
    found = export(exporting, run(exporting, "fails", "--prompt", "How long is it?"))
    times = [step.timestamp for step in found.steps]
    assert times == sorted(times)
    *_, last, end = found.steps
    assert (last.source, end.source) == ("agent", "system")
    assert last.llm_call_count == len(last.extra["attempts"]) >= 1
    assert found.extra["error"]["message"]


def test_no_format_and_an_unknown_run_are_refused(exporting: Serving):
    assert "--atif" in exporting.rookery("runs", "export", "nothing").out
    assert "RUN_NOT_FOUND" in exporting.rookery("runs", "export", "nothing", "--atif").out


# --- the fold alone -------------------------------------------------------------------------------


RUN = "run"
VIEW = RunView(
    run_id=RUN,
    session_id="s",
    status=RunState.RUNNING,
    language=Language.PYTHON,
    created_at_ms=0,
    position="1.1",
)


def fold(*facts: Fact) -> atif.Trajectory:
    async def read_blob(_: str) -> bytes:
        raise AssertionError("no fact names a blob")

    async def read() -> Any:
        folded = TrajectoryFold(RUN, read_blob)
        await folded.add(facts)
        return msgspec.to_builtins(folded.trajectory(VIEW, "1"))

    return checked(asyncio.run(read()))


def wants(*calls: CallPart) -> model.Answered:
    message = ConversationMessage(id="m", role=MessageRole.ASSISTANT, parts=calls)
    return model.Answered(
        run=RUN,
        step=1,
        attempt=1,
        message=message,
        stop_reason=ProviderStopReason.TOOL_USE,
        duration_ms=1,
    )


def requested(operation: str, name: str, **more: Any) -> tool.Requested:
    return tool.Requested(
        run=RUN,
        operation_id=operation,
        name=name,
        surface="local",
        number=1,
        side_effect=SideEffect.READ,
        idempotent=True,
        idempotency_key=operation,
        schema_digest="",
        request_digest="",
        timeout_ms=1,
        **more,
    )


def completed(operation: str, **more: Any) -> tool.Completed:
    return tool.Completed(
        run=RUN, operation_id=operation, response_digest="", duration_ms=1, **more
    )


def test_the_calls_of_a_models_program_are_in_the_result_of_its_call():
    found = fold(
        wants(CallPart(operation_id="1", number=1, name="run_code", arguments={"code": "f(2)"})),
        requested("2", "f", parent="1", arguments=CallArguments(args=[2])),
        completed("2", value=4),
        completed("1", value={"result": 4}),
    )
    (result,) = found.steps[0].observation.results
    (nested,) = result.extra["calls"]
    assert result.extra["status"] == "ok"
    assert nested["tool_call"]["arguments"] == {"args": [2]}
    assert nested["result"]["content"] == "4"


def test_a_sensitive_value_and_arguments_that_are_no_object_are_left_out():
    broken = CallPart(operation_id="2", number=2, name="g", arguments=[1], text="[1]")
    found = fold(
        wants(CallPart(operation_id="1", number=1, name="f", arguments={}), broken),
        completed("1", value={"ciphertext": "x"}, sealed=True),
    )
    hidden, opened = found.steps[0].observation.results
    assert (hidden.content, hidden.extra) == (None, {"status": "ok", "sealed": True})
    assert opened.extra == {"status": "open"}
    assert found.steps[0].tool_calls[1].arguments == {}
    assert found.steps[0].tool_calls[1].extra == {"text": "[1]"}
