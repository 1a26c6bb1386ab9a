"""A replay executes a recorded history again in a sandbox: no result changes, and no tool is
called.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.queries.replay import RunReplayer
from rookery.actors.execution.rebuilt_session import SessionRebuilder
from rookery.actors.projections.lists.run_queries import RunQueryHandler
from rookery.actors.projections.lists.sessions import SessionQueryHandler
from rookery.actors.sandbox import Sandbox, ToolResult, open_sandbox
from rookery.actors.sandbox.sessions import RecordedCall, ResultBatch
from rookery.actors.tools.evolve import evolve_calls
from rookery.actors.tools.state import SessionCalls
from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.external_driver import turn_snapshot
from rookery.bus.journal_export import verify_lines
from rookery.bus.ports import Bus, Delivery
from rookery.schemas.calls import ForkedRun, ForkPoint, RunEnvironment
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import RunsQuery, SessionsQuery
from rookery.schemas.digest import digest_json
from rookery.schemas.errors import Refused
from rookery.schemas.replies import ReplayReport
from rookery.schemas.run import Language, SessionLimits
from tests.execution.golden import JOURNAL, Change, Fields, recorded, recorded_facts

KEY = bytes(32)
FOLDED_DIGEST = "71b1a3b3c7596c20562d13ca690dbf5e9a5c22f5f431584daa12aa711004be95"
"""Digests of the sessions, runs, turns and calls of the recorded history."""

STARTED = [(fact["session"], fact["run"]) for _, fact in recorded_facts() if "offer" in fact]
CALLS = [1, 4, 1, 1, 0, 0, 0, 0, 2, 0]
ENDED_BY_ITS_TIME = 5
WHOLE = ("status", "error", "call records", "result", "stdout", "stderr", "fuel")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox(KEY) as opened:
        yield opened


async def replayed(bus: Bus, sandbox: Sandbox, session: str, run_id: str) -> ReplayReport:
    """Repeat the request until the replay has ended."""
    replaying = RunReplayer(past_of(bus, sandbox))
    while (report := await replaying.reply(asked(session, run_id))).state == "replaying":
        pass
    return report


def past_of(bus: Bus, sandbox: Sandbox) -> SessionRebuilder:
    reader = RunHistoryReader(bus.journal, bus.blobs)
    return SessionRebuilder(sandbox, reader, bus.blobs, lambda: "past")


def asked(session: str, run_id: str) -> Delivery:
    return Delivery("replay", session, "q", encode_json({"run_id": run_id}))


def replay(sandbox: Sandbox, number: int, change: Change | None = None) -> ReplayReport:
    """The run with this number among the started runs."""

    async def scenario() -> ReplayReport:
        bus = await recorded(change)
        before = await bus.journal.end()
        report = await replayed(bus, sandbox, *STARTED[number])
        assert await bus.journal.end() == before
        return report

    report = asyncio.run(scenario())
    assert sandbox.sessions() == []
    return report


def of_kind(kind: str, number: int, change: Change) -> Change:
    """Change the fact of this kind and number."""
    kinds = [fact["id"] for _, fact in recorded_facts() if fact["type"] == f"{kind}.v1"]
    return lambda fact: change(fact) if fact["id"] == kinds[number] else None


# --- the recorded history -------------------------------------------------------------------------


def test_the_recorded_history_verifies():
    with JOURNAL.open("rb") as lines:
        assert verify_lines(lines).messages == max(sequence for sequence, _ in recorded_facts())


def test_the_recorded_history_folds_to_the_recorded_states():
    found = [asyncio.run(lists()), *turns_and_calls()]
    assert digest_json(found) == FOLDED_DIGEST, found


async def lists() -> list[Any]:
    """The lists of sessions and runs."""
    bus = await recorded()
    sessions = await SessionQueryHandler.without_node(bus.journal).list(SessionsQuery())
    return [sessions, await RunQueryHandler.without_node(bus.journal).list(RunsQuery())]


def turns_and_calls() -> list[Any]:
    """The state of every session's turn, and of the calls of its last run."""
    turns, tools = TurnsDecider(), dict[str, SessionCalls]()
    states: dict[str, Any] = {}
    for _, fact in recorded_facts():
        session, text = fact["session"], json.dumps([fact]).encode()
        if fact["type"].startswith("turn."):
            (said,) = turns.codec.decode(text)
            states[session] = turns.evolve(states.get(session) or turns.initial(session), said)
        elif fact["type"].startswith("tool."):
            (said,) = turns.codec.decode(text)
            tools[session] = evolve_calls(tools.get(session) or SessionCalls(), said)
    calls = {
        session: [c.progress for c in of.calls_of_run(of.run)] for session, of in tools.items()
    }
    return [{session: turn_snapshot(state.turn) for session, state in states.items()}, calls]


@pytest.mark.parametrize("number", range(len(STARTED)))
def test_a_recorded_run_has_the_same_result(sandbox: Sandbox, number: int):
    report = replay(sandbox, number)
    assert (report.state, report.difference) == ("equal", None)
    found = report.compared[0].removesuffix(" calls")
    assert int(found) == report.calls == CALLS[number]
    whole = ((),) if number == ENDED_BY_ITS_TIME else (WHOLE, WHOLE[:-1])
    assert report.compared[1:] in whole


def test_fuel_is_compared_only_on_the_same_build(sandbox: Sandbox):
    """Builds are not reproducible: another machine's build recorded the history."""

    def of_build(build: str) -> Change:
        return of_kind("turn.started", 1, lambda fact: fact["offer"].update(build=build))

    report = replay(sandbox, 1, of_build("another"))
    assert (report.state, report.compared[1:]) == ("equal", WHOLE[:-1])

    def more_fuel_here(fact: Fields) -> None:
        of_build(sandbox.builds[Language.PYTHON])(fact)
        of_kind("turn.completed", 1, more_fuel)(fact)

    report = replay(sandbox, 1, more_fuel_here)
    assert (report.state, report.difference) == ("different", "fuel")


# --- what is not the same -------------------------------------------------------------------------


def result(**fields: Any) -> Change:
    return lambda fact: fact["result"].update(fields)


def first_call(**fields: Any) -> Change:
    return lambda fact: fact["calls"][0].update(fields)


def more_fuel(fact: Fields) -> None:
    fact["result"]["metrics"]["instructions"] += 10**9


def another_program(code: str) -> Change:
    return lambda fact: fact["request"].update(code=code)


@pytest.mark.parametrize(
    ("what", "kind", "number", "change"),
    [
        ("result", "turn.completed", 1, result(result=[2, 4])),
        ("stdout", "turn.completed", 1, result(stdout="two at once\n")),
        ("stderr", "turn.completed", 1, result(stderr="!")),
        ("status", "turn.completed", 1, result(status="permission_denied")),
        ("call records", "turn.completed", 1, result(external_calls=[])),
        ("request of call 1, 2, 3", "turn.tool_calls_returned", 1, first_call(digest="0" * 64)),
        ("request of call 4", "tool.completed", 1, lambda fact: fact.update(value=7)),
        ("request of call 1, 2, 3", "turn.started", 1, another_program("echo(1)")),
        ("end", "turn.started", 1, another_program("1")),
    ],
)
def test_the_first_difference_is_named(
    sandbox: Sandbox, what: str, kind: str, number: int, change: Change
):
    report = replay(sandbox, 1, of_kind(kind, number, change))
    found = (report.difference or "").removesuffix(f" of run {report.run_id}")
    assert (report.state, found) == ("different", what)
    assert report.recorded != report.replayed


def test_the_replay_names_an_earlier_run_that_differs(sandbox: Sandbox):
    changed = of_kind("tool.completed", 1, lambda fact: fact.update(value=7))
    report = replay(sandbox, 2, changed)
    assert report.difference == f"request of call 4 of run {STARTED[1][1]}"


def test_a_run_that_no_node_executed_is_not_found(sandbox: Sandbox):
    async def scenario() -> None:
        bus = await recorded()
        with pytest.raises(Refused, match="RUN_NOT_FOUND"):
            await replayed(bus, sandbox, "ledger", STARTED[-1][1])

    asyncio.run(scenario())


def test_a_long_replay_reports_its_progress_and_continues(sandbox: Sandbox):
    async def scenario() -> None:
        bus = await recorded()
        replaying = RunReplayer(past_of(bus, sandbox), poll_s=0)
        reports = [await replaying.reply(asked(*STARTED[6]))]
        while reports[-1].state == "replaying":
            await asyncio.sleep(0.001)
            reports.append(await replaying.reply(asked(*STARTED[6])))
        done = [report.runs_done for report in reports]
        assert done == sorted(done)
        assert (reports[0].state, reports[-1].state) == ("replaying", "equal")
        assert reports[-1].runs == done[-1] == 6, "the one that was ended left nothing"

    asyncio.run(scenario())


def test_replays_end_with_their_node(sandbox: Sandbox):
    async def scenario() -> None:
        replaying = RunReplayer(past_of(await recorded(), sandbox), poll_s=0)
        assert (await replaying.reply(asked(*STARTED[5]))).state == "replaying"
        await replaying.close()

    asyncio.run(scenario())
    assert sandbox.sessions() == []


# --- results of forks -----------------------------------------------------------------------------

POINT = ForkPoint(session="old", generation=1, run_id="r", at_sequence=9)
OFFER = RunEnvironment(language=Language.PYTHON, build="b", seed="00", limits=SessionLimits())
TOLD = RecordedCall(number=1, name="echo", digest="d", awaited=True, answer=ToolResult(1))


@pytest.mark.parametrize(
    "kept", [[[TOLD]], [ResultBatch(calls=(TOLD,))]], ids=["a list", "a batch"]
)
def test_forked_results_of_both_formats_are_read(kept: list[Any]):
    async def known() -> list[ResultBatch]:
        bus = await recorded()
        blob = await bus.blobs.put(encode_json(kept))
        forked = ForkedRun(of=POINT, begun_at_ms=5, offer=OFFER, batches=1, known_blob=blob)
        return await RunHistoryReader(bus.journal, bus.blobs).forked_answers(forked)

    assert asyncio.run(known()) == [ResultBatch(calls=(TOLD,))]


# --- how many a node holds ------------------------------------------------------------------------


def test_a_replay_without_requests_is_dropped(sandbox: Sandbox):
    async def scenario() -> None:
        past = past_of(await recorded(), sandbox)
        replaying = RunReplayer(past, poll_s=0, replays_max=1, idle_s=0.5)
        first, second = asked(*STARTED[0]), asked(*STARTED[1])
        assert (await replaying.reply(first)).state == "replaying"
        for left, right in ((first, second), (second, first)):
            assert (await replaying.reply(left)).run_id == json.loads(left.body)["run_id"]
            with pytest.raises(Refused, match="QUOTA_EXCEEDED"):
                await replaying.reply(right)
            assert (await begun(replaying, right)).state == "replaying", (
                "not what it came to before"
            )
        await replaying.close()

    asyncio.run(scenario())


async def begun(replaying: RunReplayer, delivery: Delivery) -> ReplayReport:
    """Begin as soon as the limit permits."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await replaying.reply(delivery)
            except Refused:
                await asyncio.sleep(0.01)
