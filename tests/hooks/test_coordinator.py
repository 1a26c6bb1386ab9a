"""The coordinator: what it journals and returns for an invocation, step by step."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.hooks.points.records import HookInvocationStatus as Status
from rookery.schemas.codec import encode_json
from rookery.schemas.ids import HookExecutorRef
from rookery.schemas.scalars import U64_MAX
from rookery.schemas.seed.agent_error import (
    AgentError,
    AgentErrorKind,
    CausalIds,
    RetryClassification,
)
from rookery.schemas.seed.hook import HookPoint, HookRecord, HookResponseClass
from rookery.schemas.seed.hook_invocation import HookCancellationToken, HookInput, HookResponse
from rookery.schemas.seed.hook_spec import HookSpec, HookTimeoutPolicy
from rookery.schemas.seed.records import HookPayload
from rookery.schemas.seed.refs import SourceKind, SourceRef
from tests.hooks.hook_cells import COUNTS, cells, valid_specs, visit_all
from tests.hooks.hook_fixtures import (
    CONTEXT,
    RESPONSES,
    VIEW,
    HookClock,
    RunLedger,
    ScriptedExecutor,
    coordinator,
    observer,
    spec,
)

DENY, APPROVAL = HookResponseClass.DENY, HookResponseClass.REQUEST_APPROVAL
POINT = HookPoint.BEFORE_TOOL_CALL
GUARD = spec(POINT, DENY)


def invoke(*executors: ScriptedExecutor, of: tuple[HookSpec, ...] = (GUARD,), **parts: Any) -> Any:
    hooks = coordinator(*executors, **parts)
    return asyncio.run(hooks.invoke_point(of, of[0].point, CONTEXT, VIEW))


def refuse(_spec: HookSpec, _response: HookResponse) -> bool:
    return False


def test_every_cell_has_the_outcome_of_the_table():
    """53,000 cells: nothing is applied without three records, no relevant hook fails open."""
    counts = asyncio.run(visit_all(cells(valid_specs())))
    assert counts == COUNTS
    assert counts.total() == 53_000


# --- input ----------------------------------------------------------------------------------------


def test_a_hook_gets_the_view_the_context_and_its_own_policy():
    executor = ScriptedExecutor(GUARD)
    invoke(executor)
    assert executor.inputs == [
        HookInput(
            hook_id=GUARD.hook_id,
            point=POINT,
            run_id=CONTEXT.run_id,
            agent_id=CONTEXT.agent_id,
            turn_id=CONTEXT.turn_id,
            attempt_id=CONTEXT.attempt_id,
            source=SourceRef.new("guard", SourceKind.HOOK),
            package_fingerprint=CONTEXT.package_fingerprint,
            view=VIEW,
            policy_refs=(GUARD.policy_ref,),
            cancellation=HookCancellationToken(cancelled=False),
        )
    ]


def test_hooks_of_the_point_are_invoked_in_order_and_those_of_other_points_not():
    specs = (spec(hook_id="b"), spec(HookPoint.AFTER_TOOL_CALL, hook_id="x"), spec(hook_id="a"))
    outcomes = invoke(*map(ScriptedExecutor, specs), of=specs)
    assert [one.hook_id.as_str() for one in outcomes] == ["a", "b"]


def test_an_error_ends_the_point():
    first, second = spec(hook_id="a"), spec(hook_id="b")
    last = ScriptedExecutor(second)
    with pytest.raises(AgentError, match="PolicyDenial: boom"):
        invoke(ScriptedExecutor(first, error=OSError("boom")), last, of=(first, second))
    assert last.inputs == []


def test_an_invalid_spec_is_not_invoked():
    broken = replace(GUARD, timeout=HookTimeoutPolicy(timeout_ms=0))
    executor = ScriptedExecutor(broken)
    with pytest.raises(AgentError, match="timeout_ms must be greater than zero"):
        invoke(executor, of=(broken,))
    assert executor.inputs == []


# --- records of an accepted response --------------------------------------------------------------


HOOK = {"kind": "hook", "id": "guard", "privacy": "content_refs_only"}
SOURCE = {**HOOK, "trust": "host_provided"}
EFFECT = "effect.hook.guard.hook.invocation.7"
IN_EVERY_RECORD = {
    "run_id": "run",
    "session_id": "s",
    "agent_id": "agent.s",
    "turn_id": "turn.run",
    "attempt_id": "1",
    "timestamp_millis": 0,
    "runtime_package_fingerprint": "sha256:package",
    "privacy": "content_refs_only",
    "redaction_policy_id": "policy.redaction.hook.default",
    "delivery_semantics": "journal_backed",
}


def accepted() -> tuple[Any, RunLedger]:
    """The outcome of an accepted response and the records of it, numbered from 7."""
    ledger = RunLedger()
    (outcome,) = invoke(ScriptedExecutor(GUARD, RESPONSES[DENY]), ledger=ledger, next_journal_seq=7)
    return outcome, ledger


def test_an_accepted_response_may_be_applied_once_three_records_are_journaled():
    outcome, ledger = accepted()
    assert outcome.status is Status.APPLIED_JOURNALED_MUTATION
    assert outcome.accepted_response is RESPONSES[DENY]
    assert (outcome.journal_cursor.as_str(), outcome.journaled_before_apply) == ("journal.9", True)
    records = [json.loads(body) for body in ledger.bodies()]
    for record in records:
        assert {key: record[key] for key in IN_EVERY_RECORD} == IN_EVERY_RECORD
    assert [(one["journal_seq"], one["record_id"]) for one in records] == [
        (7, "journal.hook.guard.7.response"),
        (8, "journal.hook.guard.7.intent"),
        (9, "journal.hook.guard.7.result"),
    ]


def test_the_first_record_is_the_hooks_and_names_it_as_the_target():
    outcome, ledger = accepted()
    response = json.loads(ledger.bodies()[0])
    assert (response["record_kind"], response["tags"]) == ("hook", ["hook"])
    assert (response["source"], response["subject_ref"]) == (SOURCE, HOOK)
    index = response["event_index"]
    assert (index["event_family"], index["event_kind"]) == ("hook", "hook_response_decision")
    assert (index["source"], index["subject_ref"], index["tags"]) == (SOURCE, HOOK, ["hook"])
    assert response["payload"] == {
        "type": "hook",
        "schema_version": 1,
        "hook_id": "guard",
        "point": "before_tool_call",
        "payload": {
            "type": "response_decision",
            "invocation_id": "hook.invocation.7",
            "decision": "accepted_journaled_before_apply",
            "response_class": "deny",
            "mutation_right_decision": "checked_against_point_and_spec_rights",
            "target_domain_refs": [HOOK],
        },
    }
    payload = ledger.records[0].payload
    assert isinstance(payload, HookPayload)
    assert (outcome.record.payload, outcome.record.point) == (payload.payload, payload.point)


def test_intent_and_result_are_of_one_effect_and_have_different_sources():
    _, intent, result = map(json.loads, accepted()[1].bodies())
    assert (intent["record_kind"], intent["source"]) == ("effect_intent", SOURCE)
    assert intent["payload"] == {
        "type": "effect_intent",
        "effect_id": EFFECT,
        "kind": "hook_mutation",
        "subject_ref": HOOK,
        "source": SOURCE,
        "policy_refs": [{"kind": "runtime_package", "id": "policy.hooks"}],
        "redacted_summary": "accepted hook response Deny",
    }
    of_context = json.loads(encode_json(CONTEXT.source))
    assert (result["record_kind"], result["source"]) == ("effect_result", of_context)
    assert result["payload"] == {
        "type": "effect_result",
        "effect_id": EFFECT,
        "terminal_status": "completed",
        "redacted_summary": "accepted hook response Deny journaled before apply",
    }


def test_a_response_the_guard_refuses_has_one_record_and_no_target():
    ledger = RunLedger()
    hooks = coordinator(ScriptedExecutor(GUARD, RESPONSES[DENY]), ledger=ledger)
    (outcome,) = asyncio.run(hooks.invoke_point_guarded((GUARD,), POINT, CONTEXT, VIEW, refuse))
    (record,) = map(json.loads, ledger.bodies())
    assert outcome.status is Status.REJECTED_POLICY
    assert (outcome.response_class, outcome.accepted_response) == (DENY, None)
    assert (outcome.journal_cursor.as_str(), outcome.journaled_before_apply) == ("journal.1", False)
    assert record["record_id"] == "journal.hook.guard.1.response"
    decision = record["payload"]["payload"]
    assert (decision["decision"], decision["target_domain_refs"]) == ("rejected_policy", [])
    assert hooks.next_journal_seq == 2


@pytest.mark.parametrize(
    ("answer", "status", "decision"),
    [
        (HookResponseClass.STOP_RUN, Status.REJECTED_POINT_MATRIX, "rejected_point_matrix"),
        (APPROVAL, Status.REJECTED_MUTATION_RIGHT, "rejected_mutation_right"),
    ],
)
def test_a_class_outside_the_matrix_or_the_rights_is_rejected_without_a_journal_record(
    answer: HookResponseClass, status: Status, decision: str
):
    ledger = RunLedger()
    (outcome,) = invoke(ScriptedExecutor(GUARD, RESPONSES[answer]), ledger=ledger)
    assert (outcome.status, outcome.response_class) == (status, answer)
    written = json.loads(encode_json(outcome.record))["payload"]
    assert (written["decision"], written["target_domain_refs"]) == (decision, [])
    assert (ledger.attempts, outcome.accepted_response) == (0, None)


# --- records of other outcomes --------------------------------------------------------------------


def payload_of(record: HookRecord) -> dict[str, Any]:
    written = json.loads(encode_json(record))
    assert (written["schema_version"], written["hook_id"]) == (1, "watcher")
    return written["payload"]  # type: ignore[no-any-return]


WATCHER = observer()
ENDS: list[tuple[dict[str, Any], Status, dict[str, Any]]] = [
    ({"elapsed_ms": 250}, Status.COMPLETED, {"type": "completed", "elapsed_ms": 0}),
    (
        {"elapsed_ms": 251},
        Status.TIMED_OUT_FAIL_OPEN,
        {"type": "timed_out", "elapsed_ms": 251, "failure_policy": "FailOpenObserveOnly"},
    ),
    (
        {"error": OSError("boom")},
        Status.FAILED_OPEN,
        {
            "type": "failed",
            "failure_policy": "FailOpenObserveOnly",
            "redacted_summary": "boom",
        },
    ),
    (
        {"error": OSError()},
        Status.FAILED_OPEN,
        {
            "type": "failed",
            "failure_policy": "FailOpenObserveOnly",
            "redacted_summary": "OSError",
        },
    ),
]


@pytest.mark.parametrize(("script", "status", "written"), ENDS)
def test_an_observer_that_ends_in_any_way_has_a_record_of_it(
    script: dict[str, Any], status: Status, written: dict[str, Any]
):
    ledger, clock = RunLedger(), HookClock()
    executor = ScriptedExecutor(WATCHER, clock=clock, **script)
    (outcome,) = invoke(executor, of=(WATCHER,), clock=clock, ledger=ledger)
    invocation = {"invocation_id": "hook.invocation.1"}
    assert outcome.status is status
    assert payload_of(outcome.record) == {**written, **invocation}
    assert (outcome.response_class, ledger.attempts) == (None, 0)


def test_a_cancelled_run_invokes_no_executor():
    ledger, executor = RunLedger(), ScriptedExecutor(WATCHER)
    hooks = coordinator(executor, ledger=ledger)
    cancelled = replace(CONTEXT, cancellation=HookCancellationToken(cancelled=True))
    (outcome,) = asyncio.run(hooks.invoke_point((WATCHER,), WATCHER.point, cancelled, VIEW))
    assert outcome.status is Status.CANCELLED
    assert payload_of(outcome.record) == {
        "type": "cancelled",
        "invocation_id": "hook.invocation.1",
    }
    assert (executor.inputs, ledger.attempts) == ([], 0)


# --- errors ---------------------------------------------------------------------------------------


def error_of(executor: ScriptedExecutor | None, ledger: RunLedger | None = None) -> AgentError:
    with pytest.raises(AgentError) as caught:
        invoke(*filter(None, [executor]), ledger=ledger or RunLedger())
    error = caught.value
    assert error.retry is RetryClassification.REPAIR_NEEDED
    assert error.causal_ids == CausalIds(run_id=CONTEXT.run_id)
    return error


def test_an_error_names_the_missing_executor_the_timeout_or_what_the_executor_said():
    denied = AgentErrorKind.POLICY_DENIAL
    clock = HookClock()
    late = ScriptedExecutor(GUARD, clock=clock, elapsed_ms=251)
    with pytest.raises(AgentError) as caught:
        invoke(late, clock=clock)
    assert caught.value.context.message == "hook timed out before guarded lifecycle transition"
    for executor, message in [
        (None, "missing hook executor ref"),
        (ScriptedExecutor(GUARD, error=OSError("no route")), "no route"),
    ]:
        error = error_of(executor)
        assert (error.kind, error.context.message) == (denied, message)


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (1, "hook response journal append failed before apply"),
        (2, "hook mutation journal append failed before apply"),
        (3, "hook mutation terminal result append failed before apply"),
    ],
)
def test_a_record_that_is_not_journaled_stops_the_change(failing: int, message: str):
    ledger = RunLedger(failing)
    error = error_of(ScriptedExecutor(GUARD, RESPONSES[DENY]), ledger)
    assert error.context.message == message
    assert (ledger.attempts, len(ledger.records)) == (failing, failing - 1)


@pytest.mark.parametrize("raises", [False, True])
def test_a_refusal_that_is_not_journaled_is_an_error_of_its_own(raises: bool):
    def guard(_spec: HookSpec, _response: HookResponse) -> bool:
        if raises:
            raise ValueError("of the guard")
        return False

    hooks = coordinator(ScriptedExecutor(GUARD, RESPONSES[DENY]), ledger=RunLedger(1))
    message = "hook rejected response journal append failed before returning policy rejection"
    with pytest.raises(AgentError, match=message):
        asyncio.run(hooks.invoke_point_guarded((GUARD,), POINT, CONTEXT, VIEW, guard))


def test_the_error_of_the_guard_comes_back_as_it_is_after_its_record():
    def guard(_spec: HookSpec, _response: HookResponse) -> bool:
        raise ValueError("of the guard")

    ledger = RunLedger()
    hooks = coordinator(ScriptedExecutor(GUARD, RESPONSES[DENY]), ledger=ledger)
    with pytest.raises(ValueError, match="of the guard"):
        asyncio.run(hooks.invoke_point_guarded((GUARD,), POINT, CONTEXT, VIEW, guard))
    assert len(ledger.records) == 1


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_come_from_the_allocator_and_only_for_an_append():
    blocks: list[int] = []

    def allocate(width: int) -> int:
        blocks.append(width)
        return 40

    first, second = spec(hook_id="a"), spec(POINT, DENY, hook_id="b")
    executors = ScriptedExecutor(first), ScriptedExecutor(second, RESPONSES[DENY])
    ledger = RunLedger()
    hooks = coordinator(*executors, ledger=ledger, sequence_allocator=allocate)
    observed, applied = asyncio.run(hooks.invoke_point((first, second), POINT, CONTEXT, VIEW))
    assert blocks == [3]
    assert [one.journal_seq for one in ledger.records] == [40, 41, 42]
    assert hooks.next_journal_seq == 43
    ids = [one.record.payload.invocation_id for one in (observed, applied)]
    assert ids == ["hook.invocation.1", "hook.invocation.1"]


def test_numbers_stop_at_the_largest():
    hooks = coordinator(ScriptedExecutor(GUARD), next_journal_seq=U64_MAX - 1)
    hooks._reserve(3)
    assert hooks.next_journal_seq == U64_MAX


# --- time and cancellation ------------------------------------------------------------------------


class HangingExecutor:
    """An executor that answers when the test ends."""

    def __init__(self, of: HookSpec) -> None:
        self.executor_ref: HookExecutorRef = of.executor_ref
        self.started, self.ended = asyncio.Event(), False

    async def invoke(self, hook_input: HookInput) -> HookResponse:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True
        raise AssertionError


@pytest.mark.parametrize("one", [GUARD, WATCHER], ids=["closed", "open"])
def test_an_executor_that_hangs_is_cut_at_its_time_limit(one: HookSpec):
    one = replace(one, timeout=HookTimeoutPolicy(timeout_ms=1))

    async def hang() -> Any:
        executor: Any = HangingExecutor(one)
        try:
            return await coordinator(executor).invoke_point((one,), one.point, CONTEXT, VIEW)
        finally:
            assert executor.ended

    if one.is_security_relevant:
        with pytest.raises(AgentError, match="hook timed out before"):
            asyncio.run(hang())
    else:
        (outcome,) = asyncio.run(hang())
        assert payload_of(outcome.record)["elapsed_ms"] == 2


def test_a_timeout_inside_an_executor_is_its_error():
    executor = ScriptedExecutor(GUARD, error=TimeoutError("of a socket"))
    assert error_of(executor).context.message == "of a socket"


def test_a_run_cancelled_while_a_hook_runs_drops_the_answer_and_invokes_no_other():
    specs = (replace(GUARD, hook_id=spec(hook_id="a").hook_id), spec(POINT, DENY, hook_id="b"))

    async def cancel() -> Any:
        hanging, after = HangingExecutor(specs[0]), ScriptedExecutor(specs[1])
        executors: Any = (hanging, after)
        hooks = coordinator(*executors)
        point = asyncio.ensure_future(hooks.invoke_point(specs, POINT, CONTEXT, VIEW))
        await hanging.started.wait()
        hooks.cancel()
        outcomes = await point
        assert (hanging.ended, after.inputs) == (True, [])
        assert not point.cancelling()
        return outcomes

    assert [one.status for one in asyncio.run(cancel())] == [Status.CANCELLED] * 2


def test_a_cancelled_task_stays_cancelled():
    async def cancel() -> None:
        executor: Any = HangingExecutor(GUARD)
        hooks = coordinator(executor)
        point = asyncio.ensure_future(hooks.invoke_point((GUARD,), POINT, CONTEXT, VIEW))
        await executor.started.wait()
        point.cancel()
        with pytest.raises(asyncio.CancelledError):
            await point

    asyncio.run(cancel())
