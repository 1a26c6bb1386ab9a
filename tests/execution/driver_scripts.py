"""Scripts of drivers: every path through a turn, those of a model included.

A script gets the results of its calls and returns its next step. It knows no nodes, records or
restarts: with the same results it takes the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from rookery.actors.execution.driver import CallsRequested, Finished, Step, TurnInputs
from rookery.actors.execution.models.failure_kinds import LlmFailure, LlmFailureKind, RetryPolicy
from rookery.actors.messages import TurnInput
from rookery.actors.sandbox.contract import ProgramCall, ToolResult
from rookery.schemas.calls import CallArguments
from rookery.schemas.digest import digest_json
from rookery.schemas.machines.turn import TurnTerminalCauseKind, TurnTerminalOutcome
from rookery.schemas.run import ErrorObject, RunResult, RunStatus

__all__ = ["SCRIPTS", "Pause", "Script"]


class Pause(NamedTuple):
    """The driver waits for this time."""

    ms: int


Script = Generator[Step | Pause, Mapping[int, ToolResult], None]

SAID = TurnInput("llm_returned_terminal")
EXTRACT = TurnInput("enter_extraction", {"max_retries": 1})
ASKED_FOR_OUTPUT = TurnInput("extraction_start")
UNFIT = TurnInput("extraction_validation_failed", {"error": "$.total is missing"})
NO_ANSWER = LlmFailure(
    provider="scripted", kind=LlmFailureKind.CALL_TIMEOUT, message="no answer", duration_ms=900
)
POLICY = RetryPolicy(max_retries=2, initial_delay_ms=1_000)


def wants(*numbers: int, tool: str = "fetch", moves: tuple[TurnInput, ...] = ()) -> CallsRequested:
    """Calls with these numbers, whose results arrive together."""
    return CallsRequested(tuple(_call(number, tool, a=number) for number in numbers), moves)


def naps(number: int, seconds: float) -> CallsRequested:
    """A sleep."""
    return CallsRequested((_call(number, "sleep", seconds=seconds),))


def _call(number: int, tool: str, **named: float) -> ProgramCall:
    arguments = CallArguments(kwargs=named)
    return ProgramCall(
        id=number,
        name=tool,
        args=arguments.args,
        kwargs=arguments.kwargs,
        awaited=True,
        digest=digest_json(arguments),
    )


def well(run: str, result: Any, *moves: TurnInput) -> Finished:
    """The run completes with this result."""
    return Finished(
        RunResult(result=result),
        kept=True,
        inputs=(*moves, TurnInput("run_completed", {"run_id": run})),
    )


def badly(run: str, code: str, cause: TurnTerminalCauseKind, failing: TurnInput) -> Finished:
    """The run fails with this error."""
    failed = {
        "run_id": run,
        "apply_cause": None,
        "apply_message": None,
        "outcome": TurnTerminalOutcome.FAILED.variant,
        "cause_kind": cause.variant,
        "error": code,
    }
    error = ErrorObject(code=code, message="so the script says")
    result = RunResult.failed(RunStatus.RESOURCE_EXHAUSTED, error)
    return Finished(result, kept=False, inputs=(failing, TurnInput("run_failed", failed)))


# --- calls ----------------------------------------------------------------------------------------


def talk(run: str) -> Script:
    """A model that calls two tools, then one more, and then answers."""
    del run
    first = yield wants(1, 2)
    second = yield wants(3)
    yield Finished(RunResult(result=[first[1].value, first[2].value, second[3].value]), kept=True)


def sleep_twice(run: str) -> Script:
    """A program that parks for a timer, makes a call, and sleeps for a moment."""
    del run
    yield naps(1, 5)
    second = yield wants(2)
    third = yield naps(3, 0.5)
    yield Finished(RunResult(result=[second[2].value, third[3].value]), kept=True)


def send_twice(run: str) -> Script:
    """Calls that may not be repeated, whatever happens to their node."""
    del run
    first = yield wants(1, tool="send")
    second = yield wants(2, tool="send")
    yield Finished(RunResult(result=[first[1].value, second[2].value]), kept=True)


def provided_tools(run: str) -> Script:
    """A provider calls its own tools, reports them, and then requests no call."""
    yield TurnInputs(
        (TurnInput("llm_returned_tool_calls", {"tool_count": 1}), TurnInput("tool_calls_resolved"))
    )
    yield TurnInputs(
        (TurnInput("llm_returned_tool_calls", {"tool_count": 0}), TurnInput("boundary_continue"))
    )
    yield well(run, "provided", SAID, TurnInput("boundary_complete"))


def answer(run: str) -> Script:
    """A model that answers at once."""
    yield well(run, "answered", SAID, TurnInput("boundary_complete"))


def call_ten_times(run: str) -> Script:
    """A program that makes ten calls, one after the other."""
    for number in range(1, 11):
        yield wants(number)
    yield well(run, "called", SAID, TurnInput("boundary_complete"))


def ponder(run: str) -> Script:
    """A model that thinks for longer than a start waits for its first step."""
    yield Pause(50)
    yield well(run, "thought", SAID, TurnInput("boundary_complete"))


def leave_to_callback(run: str) -> Script:
    """A callback finishes the work, and the turn does not wait for it."""
    yield TurnInputs((TurnInput("llm_returned_tool_calls", {"tool_count": 1}),))
    operations = {"op_refs": [f"{run}-elsewhere"], "barrier_ids": []}
    yield TurnInputs((TurnInput("register_pending_ops", operations),))
    yield well(run, "later", TurnInput("callback_pending"))


# --- structured output ----------------------------------------------------------------------------


def extract(run: str) -> Script:
    """Structured output fits its schema at the second attempt."""
    told = yield wants(1)
    yield TurnInputs((SAID, EXTRACT, ASKED_FOR_OUTPUT))
    yield TurnInputs((SAID, EXTRACT, UNFIT))
    yield well(run, told[1].value, SAID, EXTRACT, TurnInput("extraction_validation_passed"))


def extract_in_vain(run: str) -> Script:
    """The output never fits, and the run completes without it."""
    yield TurnInputs((SAID, EXTRACT, ASKED_FOR_OUTPUT))
    yield TurnInputs((SAID, EXTRACT, UNFIT))
    yield well(run, None, SAID, EXTRACT, UNFIT)


def extract_nothing(run: str) -> Script:
    """The model returns no structured output."""
    yield TurnInputs((SAID, EXTRACT, ASKED_FOR_OUTPUT))
    yield well(run, None, TurnInput("extraction_failed", {"error": "the model refuses"}))


# --- retries --------------------------------------------------------------------------------------


def attempt_again(
    index: int,
) -> Generator[Step | Pause, Mapping[int, ToolResult], tuple[TurnInput, ...]]:
    """After ``index`` attempts: the failure is recorded, its delay passes; then the next step."""
    planned = POLICY.schedule_retry(NO_ANSWER, index)
    assert planned is not None
    plan = planned.plan
    failed = {
        "failure_kind": planned.failure.kind.variant,
        "retry_attempt": plan.attempt,
        "max_retries": plan.max_retries,
        "selected_delay_ms": plan.selected_delay_ms,
        "error": planned.failure.message,
    }
    yield TurnInputs((TurnInput("recoverable_failure", failed),))
    yield Pause(plan.selected_delay_ms)
    return (TurnInput("retry_requested", {"retry_attempt": plan.attempt}),)


def retry(run: str) -> Script:
    """A model that answers at its second attempt."""
    again = yield from attempt_again(0)
    told = yield wants(1, moves=again)
    yield well(run, told[1].value, SAID, TurnInput("boundary_complete"))


def retry_in_vain(run: str) -> Script:
    """A model that never answers."""
    for index in range(POLICY.max_retries):
        again = yield from attempt_again(index)
        yield TurnInputs(again)
    assert POLICY.schedule_retry(NO_ANSWER, POLICY.max_retries) is None
    cause = TurnTerminalCauseKind.RETRY_EXHAUSTED
    failing = TurnInput("fatal_failure", {"cause_kind": cause.variant, "error": "no answer"})
    yield badly(run, "RUNTIME_ERROR", cause, failing)


# --- limits ---------------------------------------------------------------------------------------


def turn_limit(run: str) -> Script:
    yield wants(1)
    cause = TurnTerminalCauseKind.TURN_LIMIT_REACHED
    yield badly(run, "RUNTIME_ERROR", cause, TurnInput("turn_limit_reached"))


def budget(run: str) -> Script:
    """The run ends when its budget is used up."""
    del run
    yield wants(1)
    error = ErrorObject(code="EXTERNAL_CALLS_EXCEEDED", message="so the script says")
    result = RunResult.failed(RunStatus.RESOURCE_EXHAUSTED, error)
    yield Finished(result, kept=False)


def call_in_vain(run: str) -> Script:
    """The run's deadline passes while it waits for a call."""
    told = yield wants(1)
    yield well(run, told[1].value, SAID, TurnInput("boundary_complete"))


SCRIPTS: Mapping[str, Callable[[str], Script]] = {
    script.__name__: script
    for script in (
        talk,
        sleep_twice,
        send_twice,
        provided_tools,
        answer,
        call_ten_times,
        ponder,
        leave_to_callback,
        extract,
        extract_in_vain,
        extract_nothing,
        retry,
        retry_in_vain,
        turn_limit,
        budget,
        call_in_vain,
    )
}
