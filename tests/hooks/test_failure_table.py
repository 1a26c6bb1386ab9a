"""A real node whose hooks fail: at every point, by every failure policy and in every way, the run
does what the table of the design says, and the tools were called as often as it says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.execution.programs import Programs
from tests.hooks.failing_hooks import FAULTS, POINTS, POLICIES, Book, session_of
from tests.nodes import NodeProcess, node_on
from tests.stock_client import Stock, stock, until

REALM = "failing"
HERE = str(Path(__file__).parents[2])
PROGRAM = """
try:
    value = {tool}({session!r}, 5)
except Exception as error:
    value = error.code
value
"""
REASONS = {
    "error": "nobody answers",
    "timeout": "hook timed out before guarded lifecycle transition",
    "missing": "missing hook executor ref",
    "garbage": "the hook returned dict",
}
DENIED = ("permission_denied", "HOOK_DENIED")
PARKED = ("interrupted", "HOOK_INTERRUPTED")
FAILED = ("runtime_error", "HOOK_FAILED")
REFUSED = ("ok", "PERMISSION_DENIED")
TABLE = {
    "run_starting": (DENIED, PARKED, FAILED),
    "before_tool_call": (REFUSED, PARKED, FAILED),
    "before_approval_request": (REFUSED, PARKED, FAILED),
    "after_tool_call": (REFUSED, PARKED, FAILED),
    "before_run_complete": (DENIED, PARKED, FAILED),
}
"""By point: what becomes of the run with deny, interrupt_run and fail_run."""
CALLED = ("after_tool_call", "before_run_complete")
"""Points behind the call."""
AT_ONCE = 6
CELLS = [(point, policy, fault) for point in POINTS for policy in POLICIES for fault in FAULTS]


class FailedRun(NamedTuple):
    """What became of the run of one cell."""

    status: str
    code: str
    facts: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [fact for fact in self.facts if fact["type"] == f"{kind}.v1"]


class FailedRuns(NamedTuple):
    by_cell: dict[tuple[str, str, str], FailedRun]
    paid: Counter[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failing")


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[tuple[EmbeddedServer, NodeProcess]]:
    flags = ("--driver", "sandbox", "--tools", "tests.hooks.failing_hooks:failing")
    where = {"PYTHONPATH": HERE, "HOOKS_FOLDER": str(folder)}
    with (
        EmbeddedServer(folder / "store", admin=True) as server,
        node_on(server, REALM, folder, *flags, **where) as running,
    ):
        yield server, running


@pytest.fixture(scope="module")
def runs(node: tuple[EmbeddedServer, NodeProcess], folder: Path) -> FailedRuns:
    """All cells on one node."""

    async def play_all() -> FailedRuns:
        async with stock(node[0], REALM, Role.OPERATOR) as client:
            at_once = asyncio.Semaphore(AT_ONCE)

            async def play(*cell: str) -> FailedRun:
                async with at_once:
                    return await failed_run(client, *cell)

            played = await asyncio.gather(*(play(*cell) for cell in CELLS))
        paid = Counter(line[1] for line in Book(folder).lines() if line[0] == "pay")
        return FailedRuns(dict(zip(CELLS, played, strict=True)), paid)

    return asyncio.run(play_all())


async def failed_run(client: Stock, point: str, policy: str, fault: str) -> FailedRun:
    programs = Programs(client, session_of(point, policy, fault))
    await programs.follow()
    tool = "guarded_pay" if point == "before_approval_request" else "pay"
    body = await programs.run(PROGRAM.format(tool=tool, session=programs.session))
    code = str(body["result"]) if body["status"] == "ok" else body["error"]["code"]
    if body["status"] == "interrupted":
        await until(lambda: programs.of("turn.parked"), "the run is parked")
    return FailedRun(body["status"], code, programs.facts)


@pytest.mark.parametrize("cell", CELLS, ids=map(session_of, *zip(*CELLS, strict=True)))
def test_a_hook_that_fails_does_to_its_run_what_the_table_says(
    runs: FailedRuns, cell: tuple[str, str, str]
):
    point, policy, fault = cell
    run = runs.by_cell[cell]
    assert (run.status, run.code) == TABLE[point][POLICIES.index(policy)]
    called = point in CALLED
    assert runs.paid[session_of(*cell)] == len(run.of("tool.completed")) == called
    (noted,) = [one for one in run.of("hook.noted") if one["point"] == point]
    assert REASONS[fault] in noted["error"]
    assert (noted.get("refuses"), noted.get("parks")) == {
        "deny": (True, None),
        "interrupt_run": (None, True),
        "fail_run": (None, None),
    }[policy]
    assert not run.of("hook.response_decided"), "nothing is applied"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", ["deny", "fail_run"])
def test_the_result_of_a_run_that_may_not_complete_is_on_record_only(
    runs: FailedRuns, policy: str, fault: str
):
    (failed,) = runs.by_cell["before_run_complete", policy, fault].of("turn.failed")
    assert failed["result"]["result"] is None
    assert failed["withheld"]["result"] == "paid 5"
    assert failed["cause_kind"] == {"deny": "hook_denied", "fail_run": "hook_failure"}[policy]


@pytest.mark.parametrize("point", POINTS)
def test_a_run_that_is_cancelled_while_its_hook_is_asked_ends_as_cancelled(
    node: tuple[EmbeddedServer, NodeProcess], folder: Path, point: str
):
    async def play() -> None:
        session, book = session_of(point, "slow"), Book(folder)
        async with stock(node[0], REALM, Role.OPERATOR) as client:
            programs = Programs(client, session)
            await programs.follow()
            tool = "guarded_pay" if point == "before_approval_request" else "pay"
            run = programs.begin(PROGRAM.format(tool=tool, session=session))
            (accepted,) = await programs.seen("session.input_accepted")
            await until(lambda: ["slow", session] in book.lines(), "the hook is asked")
            await programs.cancel(accepted["run"], now=True)
            book.gate(session).touch()
            assert (await run)["status"] == "cancelled"
            assert not programs.of("hook.noted")

    asyncio.run(play())


def test_what_a_cancelled_run_leaves_behind_is_on_record(node: tuple[EmbeddedServer, NodeProcess]):
    async def play() -> None:
        async with stock(node[0], REALM, Role.OPERATOR) as client:
            programs = Programs(client, "cancelled")
            await programs.follow()
            run = programs.begin("await sleep(60)")
            (parked,) = await programs.seen("turn.parked")
            await programs.cancel(parked["run"], now=True)
            (decided,) = await programs.seen("hook.response_decided")
            assert decided["change"]["payload"]["redacted_summary"] == "half of a payment"
            (end,) = await programs.seen("turn.cancelled")
            assert (end["run"], end["result"]["status"]) == (parked["run"], "cancelled")
            run.cancel()

    asyncio.run(play())
