"""The list of runs: their status, what they wait for, and the command that ends the wait."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.actors.projections.lists.runs import RunProjection
from rookery.bus.ports import Delivery
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import fact_tag, wire_names
from rookery.schemas.commands import RunsQuery
from rookery.schemas.envelope import InputSource
from rookery.schemas.errors import Refused
from rookery.schemas.facts import approval, session, tool, turn
from rookery.schemas.facts.run_progress import RunFactView, RunProgress
from rookery.schemas.machines.turn import TurnTerminalCauseKind, TurnTerminalOutcome
from rookery.schemas.replies import RunState, RunWait
from rookery.schemas.run import CallStatus, ErrorObject, Language, RunResult, RunStatus
from tests.projections.fact_builders import BEGIN_MS, FactHistory, run_of, runs_of


@pytest.fixture
def history() -> FactHistory:
    return FactHistory()


def failed(run: str, **how: Any) -> turn.Failed:
    how = {
        "outcome": TurnTerminalOutcome.FAILED,
        "cause_kind": TurnTerminalCauseKind.FATAL_FAILURE,
        "error": "RUNTIME_ERROR: boom",
    } | how
    return turn.Failed(run=run, **how)


def wait_of(history: FactHistory, run: str) -> RunWait:
    wait = run_of(history, run).waits_for
    assert wait is not None
    return wait


# --- what became of it ----------------------------------------------------------------------------


def test_a_run_is_queued_then_runs_and_ends_by_its_result(history: FactHistory):
    history.accept("s", "r", language="typescript")
    queued = run_of(history, "r")
    assert (queued.status, queued.started_at_ms, queued.session_id) == (RunState.QUEUED, None, "s")
    history.start("s", "r")
    running = run_of(history, "r")
    assert (running.status, running.waits_for) == (RunState.RUNNING, None)
    history.complete("s", "r")
    ended = run_of(history, "r")
    assert (ended.status, ended.code, ended.language) == (RunState.OK, None, Language.TYPESCRIPT)
    times = (ended.created_at_ms, ended.started_at_ms, ended.ended_at_ms)
    assert times == (BEGIN_MS + 1, BEGIN_MS + 3, BEGIN_MS + 4)
    assert ended.position == "1.1"


@pytest.mark.parametrize("status", [s for s in RunStatus if RunState(s.value).is_end])
def test_every_status_a_run_may_end_with_is_shown_with_its_code(
    history: FactHistory, status: RunStatus
):
    history.accept("s", "r")
    history.start("s", "r")
    error = ErrorObject(code="TOOL_ERROR", message="no")
    history.say("s", failed("r", result=RunResult(status=status, error=error)))
    run = run_of(history, "r")
    assert (run.status.value, run.code) == (status.value, "TOOL_ERROR")


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (turn.Completed(run="r", result_blob="d"), RunState.OK, None),
        (turn.Cancelled(run="r"), RunState.CANCELLED, "CANCELLED"),
        (failed("r", result_blob="d"), RunState.RUNTIME_ERROR, "RUNTIME_ERROR"),
        (
            failed("r", outcome=TurnTerminalOutcome.TIME_BUDGET_EXCEEDED, error="TIMEOUT_WALL: 5"),
            RunState.TIMEOUT,
            "TIMEOUT_WALL",
        ),
        (
            failed("r", outcome=TurnTerminalOutcome.BUDGET_EXHAUSTED, error="X: y"),
            RunState.RESOURCE_EXHAUSTED,
            "X",
        ),
        (session.RunCommitted(run="r", input_id="r"), RunState.OK, None),
        (session.RunFailed(run="r"), RunState.RUNTIME_ERROR, None),
        (session.RunRolledBack(run="r"), RunState.CANCELLED, "CANCELLED"),
        (session.InputCancelled(run="r", input_id="r"), RunState.CANCELLED, "CANCELLED"),
        (
            session.InputRefused(
                run="r", input_id="r", error=ErrorObject(code="SESSION_CLOSED", message="gone")
            ),
            RunState.RUNTIME_ERROR,
            "SESSION_CLOSED",
        ),
    ],
)
def test_a_run_without_a_journaled_result_ends_as_its_waiting_client_saw(
    history: FactHistory, end: Any, status: RunState, code: str | None
):
    history.accept("s", "r")
    history.say("s", end)
    run = run_of(history, "r")
    assert (run.status, run.code, run.ended_at_ms) == (status, code, history.now_ms)


def test_what_admission_says_after_the_turn_changes_nothing(history: FactHistory):
    history.accept("s", "r")
    history.start("s", "r")
    ended = RunResult(status=RunStatus.TIMEOUT, error=ErrorObject(code="TIMEOUT_CPU", message=""))
    history.say("s", failed("r", result=ended))
    before = run_of(history, "r")
    history.say("s", session.RunFailed(run="r"))
    assert run_of(history, "r") == before


# --- what it waits for ----------------------------------------------------------------------------


def test_a_queued_run_waits_for_the_run_that_has_its_session(history: FactHistory):
    history.accept("s", "first")
    history.start("s", "first")
    history.accept("s", "second")
    wait = wait_of(history, "second")
    assert "first" in wait.what
    assert (wait.since_ms, wait.command) == (history.now_ms, "rookery runs cancel first")
    history.complete("s", "first")
    assert "wakes the session" in wait_of(history, "second").what


def test_a_run_waits_for_the_calls_that_have_come_to_nothing_yet(history: FactHistory):
    history.accept("s", "r")
    history.start("s", "r")
    tea, cake = history.want("s", "r", "tea", "cake")
    assert wait_of(history, "r").what == "a slot for tea, cake"
    history.intend("s", "r", tea, cake)
    since_ms = history.now_ms
    done = tool.Completed(run="r", operation_id=tea, response_digest="d", duration_ms=1)
    history.say("s", done)
    wait = wait_of(history, "r")
    assert (wait.what, wait.since_ms, wait.operation_ids) == ("cake", since_ms, (cake,))
    assert wait.command == "rookery runs cancel r"
    fault = ToolFault("TOOL_ERROR", "no")
    history.say(
        "s",
        tool.Failed(
            run="r", operation_id=cake, error=fault, status=CallStatus.ERROR, duration_ms=1
        ),
    )
    assert run_of(history, "r").waits_for is None
    assert run_of(history, "r").calls == 2


def test_a_call_with_unknown_outcome_waits_for_an_operator_and_shows_the_command(
    history: FactHistory,
):
    history.accept("s", "r")
    history.start("s", "r")
    (charge,) = history.want("s", "r", "charge")
    history.intend("s", "r", charge)
    history.say("s", tool.RecoveryRequired(run="r", operation_id=charge, reason="died"))
    unparked = run_of(history, "r")
    assert unparked.status is RunState.RUNNING
    parked = turn.Parked(
        run="r", code="RECOVERY_REQUIRED", snapshot_id="", snapshot_blob="", waits_for=(charge,)
    )
    history.say("s", parked)
    run = run_of(history, "r")
    assert (run.status, run.code, run.ended_at_ms) == (
        RunState.INTERRUPTED,
        "RECOVERY_REQUIRED",
        None,
    )
    for wait in (unparked.waits_for, run.waits_for):
        assert wait is not None
        assert wait.command.startswith("rookery runs resolve r r-1 --completed JSON | --failed")
        assert wait.operation_ids == (charge,)
    history.say("s", turn.Unparked(run="r"))
    assert (run_of(history, "r").status, run_of(history, "r").code) == (RunState.RUNNING, None)


@pytest.mark.parametrize(("said", "until_ms"), [({}, 900), ({"may_act_until_ms": 950}, 950)])
def test_a_call_that_waits_for_an_operator_says_until_when_it_may_act(
    history: FactHistory, said: dict[str, int], until_ms: int
):
    """Older nodes do not say it of a recovery: the deadline of the intent counts."""
    history.accept("s", "r")
    history.start("s", "r")
    (charge,) = history.want("s", "r", "charge")
    intent = tool.IntentRecorded(
        run="r", operation_id=charge, attempt=1, node="n", deadline_at_ms=900
    )
    history.say("s", intent)
    assert wait_of(history, "r").may_act_until_ms is None
    history.say("s", tool.RecoveryRequired(run="r", operation_id=charge, reason="lost", **said))
    assert wait_of(history, "r").may_act_until_ms == until_ms
    history.say("s", tool.RetryAllowed(run="r", operation_id=charge, resolved_by="anne"))
    assert wait_of(history, "r").may_act_until_ms is None


def test_a_parked_run_is_shown_by_what_it_is_parked_for(history: FactHistory):
    for code, status, command in (
        ("WAITING_FOR_APPROVAL", RunState.WAITING_FOR_APPROVAL, "rookery approvals approve s.r"),
        ("LEASE_REAUTH_REQUIRED", RunState.INTERRUPTED, "rookery leases login"),
        ("NODE_DRAINED", RunState.INTERRUPTED, "rookery up"),
        ("SOMETHING_NEW", RunState.INTERRUPTED, "rookery runs cancel r"),
    ):
        run = f"r-{code}"
        history.accept("s", run)
        history.start("s", run)
        (call,) = history.want("s", run, "charge")
        parked = turn.Parked(
            run=run, code=code, snapshot_id="", snapshot_blob="", waits_for=(call,)
        )
        history.say("s", parked)
        assert (run_of(history, run).status, run_of(history, run).code) == (status, code)
        assert wait_of(history, run).command.startswith(command)


def test_a_sleeping_run_is_shown_with_the_time_of_its_first_sleep(history: FactHistory):
    history.accept("s", "r")
    history.start("s", "r")
    calls = history.want("s", "r", "sleep", "sleep", "charge")
    for call, until_ms in zip(calls, (BEGIN_MS + 9_000, BEGIN_MS + 5_000), strict=False):
        awaited = tool.Awaited(
            run="r", operation_id=call, code="WAITING_FOR_TIMER", until_ms=until_ms
        )
        history.say("s", awaited)
    history.say("s", tool.Withdrawn(run="r", operation_id=calls[2]))
    in_memory = wait_of(history, "r")
    code = "WAITING_FOR_TIMER"
    parked = turn.Parked(
        run="r", code=code, snapshot_id="", snapshot_blob="", waits_for=tuple(calls[:2])
    )
    history.say("s", parked)
    for wait in (in_memory, wait_of(history, "r")):
        assert (wait.what, wait.until_ms) == ("the end of sleep, sleep", BEGIN_MS + 5_000)
        assert (wait.who, wait.command) == (
            "its timer, or a client that cancels the run",
            "rookery runs cancel r",
        )
    assert (run_of(history, "r").status, run_of(history, "r").code) == (RunState.INTERRUPTED, code)


def test_an_ended_run_waits_for_nothing(history: FactHistory):
    history.accept("s", "r")
    history.start("s", "r")
    history.want("s", "r", "charge")
    history.say("s", turn.Cancelled(run="r"))
    assert run_of(history, "r").waits_for is None


# --- lists ----------------------------------------------------------------------------------------


def test_lists_are_newest_first_and_pages_neither_lose_nor_repeat(history: FactHistory):
    for number in range(25):
        history.run(f"s{number % 3}", f"r{number}")
    listed, before = [], None
    while True:
        page = runs_of(history, limit=7, before=before)
        listed += [run.run_id for run in page.runs]
        if (before := page.next) is None:
            break
        history.run("s0", f"late-{before}")
    assert listed == [f"r{number}" for number in range(24, -1, -1)]


def test_lists_are_filtered_by_status_session_language_and_time(history: FactHistory):
    history.run("a", "r1")
    border_ms = history.now_ms + 1
    history.run("b", "r2", language="typescript")
    history.accept("b", "r3")

    def ids(**query: Any) -> list[str]:
        return [run.run_id for run in runs_of(history, **query).runs]

    assert ids() == ["r3", "r2", "r1"]
    assert ids(status=RunState.OK) == ["r2", "r1"]
    assert ids(session="b") == ["r3", "r2"]
    assert ids(language=Language.TYPESCRIPT) == ["r2"]
    assert ids(since_ms=border_ms) == ["r3", "r2"]
    assert ids(until_ms=border_ms) == ["r1"]
    assert ids(run_id="r2") == ["r2"]
    assert ids(run_id="unknown") == []
    assert ids(status=RunState.OK, session="b", limit=1) == ["r2"]


def test_lists_are_filtered_by_the_source_of_the_input(history: FactHistory):
    """A fact of an older node does not say it."""
    history.run("a", "r1", source=InputSource.WEBHOOK)
    history.accept("a", "r2", source=InputSource.RPC)
    history.accept("b", "old")
    found = {run.run_id: run.input_source for run in runs_of(history).runs}
    assert found == {"r1": InputSource.WEBHOOK, "r2": InputSource.RPC, "old": msgspec.UNSET}
    for source, expected in ((InputSource.WEBHOOK, ["r1"]), (InputSource.STDIN, [])):
        listed = runs_of(history, input_source=source).runs
        assert [run.run_id for run in listed] == expected


def test_a_session_that_cannot_be_is_refused(history: FactHistory):
    with pytest.raises(Refused) as refused:
        runs_of(history, session="a b")
    assert refused.value.code == "INVALID_SESSION_ID"


def test_a_page_that_is_just_full_has_no_next(history: FactHistory):
    history.run("s", "r1")
    history.run("s", "r2")
    assert runs_of(history, limit=2).next is None
    assert runs_of(history, limit=1).next == "6.1"


@pytest.mark.parametrize(
    "before", ["", "7", "x.1", "7.", "-1.1", "9" * 5_000 + ".1", "1." + "9" * 5_000]
)
def test_an_invalid_position_is_refused(history: FactHistory, before: str):
    with pytest.raises(Refused) as caught:
        runs_of(history, before=before)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_projectors_that_start_earlier_and_later_fold_the_same_list():
    whole, grown = FactHistory.recorded("shop"), FactHistory()
    view = RunQueryHandler.without_node(grown)

    async def read_on() -> Any:
        for message in whole.messages:
            grown.messages.append(message)
            listed = await view.list(RunsQuery())
        return listed

    assert asyncio.run(read_on()) == runs_of(whole)


def test_the_query_handler_decodes_the_delivery(history: FactHistory):
    history.run("s", "r")
    view = RunQueryHandler.without_node(history)
    delivery = Delivery(verb="runs", key="all", id="1", body=b'{"status":"ok"}')
    assert [run.run_id for run in asyncio.run(view.handle(delivery)).runs] == ["r"]
    for body in (b'{"status":"odd"}', b'{"limit":0}', b'{"limit":1001}', b'{"colour":1}'):
        with pytest.raises(Refused):
            asyncio.run(view.handle(Delivery(verb="runs", key="all", id="2", body=body)))


# --- facts ----------------------------------------------------------------------------------------


def test_sealed_damaged_and_unknown_facts_hide_no_run(history: FactHistory):
    history.accept("s", "r")
    for body in (b'{"sealed":{}}', b"no json", b'[{"type":"turn.new.v9","run":"r","code":1}]'):
        history.write("turn", "s", body)
    history.write("turn", "s", b'[{"type":"turn.dreamt.v1","run":"r","at_ms":1}]')
    history.write("lease", "s", b'[{"type":"lease.odd.v1","run":"other"}]')
    history.start("s", "r")
    assert [(run.run_id, run.status) for run in runs_of(history).runs] == [("r", RunState.RUNNING)]


def test_every_field_of_a_run_fact_view_is_a_field_of_a_fact():
    """A renamed field would be skipped without an error."""
    facts = (
        session.InputAccepted(run="r", input_id="i"),
        turn.ToolCallsReturned(tool_count=1),
        turn.Parked(run="r", code="c", snapshot_id="", snapshot_blob="", waits_for=("o",)),
        failed("r", result=RunResult(error=ErrorObject(code="c", message="m"))),
        tool.Requested,
        tool.Awaited,
        tool.Adopted,
        tool.IntentRecorded,
        tool.RecoveryRequired,
        session.InputRefused,
        approval.Requested,
    )
    named = {name for fact in facts for name in fact.__struct_fields__} | {"type"}
    assert set(RunFactView.__struct_fields__) <= named


@pytest.mark.parametrize("kind", wire_names(tool.CallFact))
def test_every_fact_of_a_call_changes_the_progress_of_its_run(kind: str):
    """A fact that is added to the family and forgotten by the fold fails here."""
    progress = RunProgress()
    requested = {"operation_id": "o", "name": "tea"}
    progress.apply_fields({"type": fact_tag(turn.ToolCallsReturned), "calls": [requested]})
    before = replace(progress.calls["o"])
    progress.apply_fields({"type": kind, **requested})
    assert progress.calls.get("o") != before


def test_of_an_ended_run_only_its_record_is_stored(history: FactHistory):
    history.accept("s", "r", code="x" * 10_000)
    history.start("s", "r")
    history.want("s", "r", "charge")
    table = RunProjection()
    for message in history.messages:
        table.apply(message)
    assert table.unfinished("r") is not None
    history.complete("s", "r", stdout="y" * 10_000)
    for message in history.messages[-2:]:
        table.apply(message)
    assert table.unfinished("r") is None
    record = table.get("r")
    assert record is not None
    assert len(msgspec.json.encode(record)) < 400
