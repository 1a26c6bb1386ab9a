"""Every cell of the coordinator: valid spec x class of the answer x fault, against the table.

``python -m tests.hooks.hook_cells`` prints how often each outcome occurred in the 53,000 cells.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from rookery.schemas.seed.agent_error import AgentError, AgentErrorKind, RetryClassification
from rookery.schemas.seed.hook import HookResponseClass
from rookery.schemas.seed.hook_invocation import HookCancellationToken, HookResponse
from rookery.schemas.seed.hook_spec import HookSpec
from tests.hooks.hook_fixtures import (
    CONTEXT,
    CRITICAL,
    MATRIX,
    RESPONSES,
    VIEW,
    HookClock,
    RunLedger,
    ScriptedExecutor,
    coordinator,
    one_right_specs,
)

FAULTS: Final = (
    *("none", "error", "timeout", "cancelled", "missing", "guard_no", "guard_error"),
    *("append_1", "append_2", "append_3"),
)
COUNTS: Final = {
    "Completed": 1_590,
    "AppliedJournaledMutation": 99,
    "RejectedPolicy": 99,
    "guard error": 99,
    "RejectedMutationRight": 2_052,
    "RejectedPointMatrix": 27_564,
    "FailedOpen": 680,
    "TimedOutFailOpen": 680,
    "Cancelled": 5_300,
    "PolicyDenial": 4_719,
    "HookFailure": 9_438,
    "HostConfigurationNeeded": 680,
}
"""How often each outcome occurs in all cells."""

_CLOSED: Final = {
    "deny": "PolicyDenial",
    "interrupt_run": "HookFailure",
    "fail_run": "HookFailure",
}
TABLE: Final[dict[str, dict[str, str]]] = {
    "error": {"fail_open_observe_only": "FailedOpen", **_CLOSED},
    "timeout": {"fail_open_observe_only": "TimedOutFailOpen", **_CLOSED},
    "cancelled": dict.fromkeys(
        ("fail_open_observe_only", "deny", "interrupt_run", "fail_run"), "Cancelled"
    ),
    "missing": {"fail_open_observe_only": "HostConfigurationNeeded", **_CLOSED},
    "guard_no": dict.fromkeys(_CLOSED, "RejectedPolicy"),
    "guard_error": dict.fromkeys(_CLOSED, "guard error"),
    "append_1": _CLOSED,
    "append_2": _CLOSED,
    "append_3": _CLOSED,
    "none": dict.fromkeys(_CLOSED, "AppliedJournaledMutation"),
}
"""Outcome by fault and failure policy: the first four rows for every answer, the others for one
that changes something and may be given."""
RECORDS: Final = {
    "none": 3,
    "guard_no": 1,
    "guard_error": 1,
    "append_1": 0,
    "append_2": 1,
    "append_3": 2,
}
"""Records at the port after such an answer."""
BEFORE_THE_ANSWER: Final = ("error", "timeout", "cancelled", "missing")


class Cell(NamedTuple):
    spec: HookSpec
    answer: HookResponseClass
    fault: str


class Visited(NamedTuple):
    """What is known after a cell was visited."""

    outcome: str
    records: int
    applied: bool
    invoked: bool


class GuardError(Exception):
    """The guard of the caller failed."""


def valid_specs() -> list[HookSpec]:
    found = []
    for one in one_right_specs():
        try:
            one.validate()
        except AgentError:
            continue
        found.append(one)
    return found


def cells(specs: Iterable[HookSpec]) -> Iterator[Cell]:
    for one in specs:
        for answer in HookResponseClass:
            for fault in FAULTS:
                yield Cell(one, answer, fault)


def expected(cell: Cell) -> Visited:
    """The row of the table."""
    spec, answer, fault = cell
    outcome, records = "", 0
    if fault in BEFORE_THE_ANSWER:
        outcome = TABLE[fault][spec.failure.value]
    elif answer.value not in MATRIX[spec.point.value]:
        outcome = "RejectedPointMatrix"
    elif answer not in spec.mutation_rights.rights:
        outcome = "RejectedMutationRight"
    elif answer is HookResponseClass.OBSERVE:
        outcome = "Completed"
    else:
        outcome, records = TABLE[fault][spec.failure.value], RECORDS[fault]
    applied = outcome == "AppliedJournaledMutation"
    return Visited(outcome, records, applied, fault not in ("cancelled", "missing"))


async def visit(cell: Cell) -> Visited:
    """Invoke the hook of the cell with its fault."""
    spec, answer, fault = cell
    clock = HookClock()
    error = AgentError.new(
        AgentErrorKind.EXTENSION_FAILURE, RetryClassification.RETRYABLE, "executor failed"
    )
    executor = ScriptedExecutor(
        spec,
        RESPONSES[answer],
        clock=clock,
        elapsed_ms=spec.timeout.timeout_ms + (fault == "timeout"),
        error=error if fault == "error" else None,
    )
    ledger = RunLedger(int(fault[-1]) if fault.startswith("append") else 0)
    hooks = coordinator(*([] if fault == "missing" else [executor]), ledger=ledger, clock=clock)
    token = HookCancellationToken(cancelled=fault == "cancelled")

    def guard(_spec: HookSpec, _response: HookResponse) -> bool:
        if fault == "guard_error":
            raise GuardError
        return fault != "guard_no"

    try:
        (outcome,) = await hooks.invoke_point_guarded(
            (spec,), spec.point, replace(CONTEXT, cancellation=token), VIEW, guard
        )
    except GuardError:
        return Visited("guard error", len(ledger.records), False, bool(executor.inputs))
    except AgentError as raised:
        return Visited(raised.kind.value, len(ledger.records), False, bool(executor.inputs))
    assert (outcome.accepted_response is not None) is outcome.journaled_before_apply
    return Visited(
        "".join(part.capitalize() for part in outcome.status.name.split("_")),
        len(ledger.records),
        outcome.accepted_response is not None,
        bool(executor.inputs),
    )


async def visit_all(all_cells: Iterable[Cell]) -> Counter[str]:
    """Visit cells; raises ``AssertionError`` for the first that differs from the table."""
    counts: Counter[str] = Counter()
    for cell in all_cells:
        visited = await visit(cell)
        assert visited == expected(cell), (cell, visited, expected(cell))
        assert not visited.applied or visited.records == 3, cell
        if cell.spec.point.value in CRITICAL or cell.spec.mutation_rights.can_change_behavior:
            assert visited.outcome not in ("FailedOpen", "TimedOutFailOpen"), cell
        counts[visited.outcome] += 1
    return counts


def main() -> int:
    started = time.process_time()
    counts = asyncio.run(visit_all(cells(valid_specs())))
    for outcome, count in counts.most_common():
        sys.stdout.write(f"{count:7,} {outcome}\n")
    sys.stdout.write(f"{counts.total():7,} cells in {time.process_time() - started:.1f} s of CPU\n")
    return 0 if counts == COUNTS else 1


if __name__ == "__main__":
    sys.exit(main())
