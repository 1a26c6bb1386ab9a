"""Scripts take every path through a turn, and no crash or cancellation leaves the path.

Another node continues the run of a killed node and leaves the same facts; a cancelled run ends
once. Every fact is what the machine decides at that step.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import asdict, replace

from rookery.actors.kernel.machines.machine import SEED
from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.external_driver import turn_snapshot
from rookery.actors.turns.state import SessionTurns
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.machines.turn import TurnPhase
from rookery.schemas.machines.views import TurnView
from tests.execution.driver_scripts import SCRIPTS
from tests.execution.scripted_driver import CODECS, SESSION, ScriptedWorld

IMMEDIATE = ("append", "context")
ENDS: Final = {
    "talk": ("ok", ["done", "done", "done"]),
    "sleep_twice": ("ok", ["done", None]),
    "send_twice": ("ok", ["done", "done"]),
    "provided_tools": ("ok", "provided"),
    "answer": ("ok", "answered"),
    "call_ten_times": ("ok", "called"),
    "ponder": ("ok", "thought"),
    "leave_to_callback": ("ok", "later"),
    "extract": ("ok", "done"),
    "extract_in_vain": ("ok", None),
    "extract_nothing": ("ok", None),
    "retry": ("ok", "done"),
    "retry_in_vain": ("resource_exhausted", "RUNTIME_ERROR"),
    "turn_limit": ("resource_exhausted", "RUNTIME_ERROR"),
    "budget": ("resource_exhausted", "EXTERNAL_CALLS_EXCEEDED"),
    "call_in_vain": ("timeout", "TIMEOUT_WALL"),
    "append": ("ok", None),
    "context": ("ok", None),
}
"""For each script its end: status, and result or code."""
PLAYS = pytest.mark.parametrize("script", ENDS)
UNWALKED: Final = {
    "PrimitiveAppliedImmediateCancelled": "an append stands with its start, nothing comes between",
    "AcknowledgeTerminal": "only admission waits for a driver's turn, and needs no word",
    "ForceCancelNoRun": "there is no driver where there is no run",
    "RunCompleted": "a driver's turn has ended before its run ends",
}
"""Transitions that no driver can cause."""


def world_of(script: str) -> ScriptedWorld:
    world = ScriptedWorld()
    world.backend.hold = script == "call_in_vain"
    return world


@cache
def record(script: str) -> tuple[list[str], int]:
    """The transitions of an undisturbed script, and the number of messages."""
    with world_of(script) as world:
        world.begin()
        world.play(script)
        world.until_over()
        assert Lawful(world).check().ends == world.runs
        return rows(world), len(world.stored("", SESSION))


def rows(world: ScriptedWorld) -> list[str]:
    return [fact.row for fact in world.recorded() if hasattr(fact, "row")]


def moments(script: str) -> Iterator[int]:
    """After each message of the script's run."""
    return iter(range(1, record(script)[1] + 1))


class Lawful:
    """The facts of a session, folded as the actor folds them."""

    def __init__(self, world: ScriptedWorld) -> None:
        self._world, self._concern = world, TurnsDecider()
        self._inputs = {asked.fact: on for on, asked in TURN.inputs.items()}
        self.phases: set[TurnPhase] = {TurnPhase.READY}

    def check(self) -> ScriptedWorld:
        """Check that the machine decides each fact in its state, and that the actor has the same
        last state."""
        state: Any = SessionTurns()
        for stored in self._world.stored("", SESSION):
            if stored.entity.family == "tool":
                continue
            for fact in CODECS[stored.entity.family].decode(stored.body):
                state = self._fold(state, stored.entity.family, fact)
        assert self._world.turn() == TurnView(**asdict(turn_snapshot(state.turn)), effects=())
        return self._world

    def _fold(self, state: Any, family: str, fact: Any) -> Any:
        if family == "session":
            return self._concern.observe(state, fact)
        if (on := self._inputs.get(type(fact))) is not None:
            decided = TURN.decide(state.turn, on, replace(fact, row=""))
            assert decided.row == fact.row
        after = self._concern.evolve(state, fact)
        assert self._concern.load(self._concern.dump(after)) == after
        for holds in TURN.invariants:
            assert holds(after.turn), holds.__name__
        self.phases.add(after.turn.phase)
        return after


# --- undisturbed ----------------------------------------------------------------------------------


@PLAYS
def test_a_script_ends_its_run_and_the_client_gets_the_result(script: str):
    with world_of(script) as world:
        world.begin()
        asked = world.play(script)
        world.until_over()
        world.until(lambda: asked.answers)
        told = msgspec.json.decode(asked.answers[-1].body)
        status, what = ENDS[script]
        assert told["status"] == status
        assert (told["result"] if status == "ok" else told["error"]["code"]) == what


def test_a_retry_waits_for_its_planned_delay():
    with ScriptedWorld() as world:
        world.begin()
        world.play("retry")
        world.until_over()
        at_ms = {type(fact).__name__: fact.at_ms for fact in world.recorded()}
        assert at_ms["RetryRequested"] - at_ms["AttemptFailed"] >= 1_000


def test_the_scripts_cover_every_row_and_phase_that_a_driver_can_cause():
    walked = {row for script in ENDS for row in record(script)[0]}
    phases = set()
    for now in (True, False):
        for script in ("provided_tools", "ponder", "call_in_vain"):
            for moment in moments(script):
                lawful = cancelled(script, moment, now=now)
                walked |= set(rows(lawful._world))
                phases |= lawful.phases
    assert walked.isdisjoint(UNWALKED)
    assert walked | UNWALKED.keys() == {r.name for r in TURN.transitions if r.edition is not SEED}
    for script in ENDS:
        with world_of(script) as world:
            world.begin()
            world.play(script)
            world.until_over()
            lawful = Lawful(world)
            lawful.check()
            phases |= lawful.phases
    assert phases == set(TurnPhase)


# --- killed ---------------------------------------------------------------------------------------


@PLAYS
def test_a_node_may_die_with_any_message_and_the_record_is_the_same(script: str):
    for moment in moments(script):
        with world_of(script) as world:
            world.begin()
            world.play(script)
            world.kill_after(moment)
            settle_calls(world)
            assert rows(Lawful(world).check()) == record(script)[0], moment
            assert world.ends == world.runs


@PLAYS
def test_a_run_ends_although_every_node_dies_soon(script: str):
    """A call needs three messages of one node: both intents, and a result."""
    with world_of(script) as world:
        world.begin()
        world.play(script)
        while not world.closes:
            world.kill_after(len(world.stored("", SESSION)) + 3)
            assert len(world.nodes) < 20
            unpark(world)
        settle_calls(world)
        assert rows(Lawful(world).check()) == record(script)[0]
        assert world.ends == world.runs


@pytest.mark.parametrize("later", range(1, 9))
def test_a_parked_run_continues_from_its_current_state(later: int):
    with ScriptedWorld() as world:
        world.backend.hold = True
        world.begin()
        world.play("send_twice")
        world.until(lambda: world.kinds("tool") == ["requested", "intent_recorded"])
        world.nodes[-1].crash()
        world.backend.hold = False
        world.begin()
        world.until(lambda: world.rest)
        stood = len(world.stored("", SESSION))
        allow_retry(world, world.rest)
        world.kill_after(stood + later)
        settle_calls(world)
        assert rows(Lawful(world).check()) == record("send_twice")[0]
        assert world.ends == world.runs


def test_a_call_that_begins_while_its_run_parks_is_not_cancelled():
    with ScriptedWorld() as world:
        world.backend.hold = True
        world.begin()
        world.play("send_twice")
        world.until(lambda: world.kinds("tool") == ["requested", "intent_recorded"])
        world.nodes[-1].crash()
        world.begin()
        assert world.memory
        world.memory.may_rest.clear()
        world.until(lambda: world.kinds("tool")[-1] == "recovery_required")
        (lost,) = {fact.operation_id for fact in world.recorded("tool")}
        world.settle()
        world.ask("resolve", SESSION, run_id=world.runs[0], operation_id=lost, retry=True, now=True)
        world.until(lambda: world.backend.executions[lost] == 2)
        world.memory.may_rest.set()
        world.until(lambda: world.rest)
        world.settle()
        world.backend.hold = False
        world.until_over()
        assert "failed" not in world.kinds("tool")


def settle_calls(world: ScriptedWorld) -> None:
    """End the run; an operator resolves calls with an unknown outcome."""
    while not world.closes:
        world.until(lambda: world.closes or world.rest)
        unpark(world)
    world.settle()


def unpark(world: ScriptedWorld) -> None:
    rest = world.rest
    while rest is not None and world.rest == rest:
        allow_retry(world, rest)
        world.pass_s(1)


def allow_retry(world: ScriptedWorld, rest: Any) -> None:
    for operation_id in rest.waits_for:
        world.ask(
            "resolve", SESSION, run_id=rest.run, operation_id=operation_id, retry=True, now=True
        )


# --- cancelled ------------------------------------------------------------------------------------


def cancelled(script: str, moment: int, *, now: bool) -> Lawful:
    """Play a script and cancel its run after this many messages; then run the next."""
    with world_of(script) as world:
        world.begin()
        world.play(script)

        def cancel() -> None:
            world.ask("cancel", SESSION, run_id=world.runs[0], now=now)

        world.meanwhile(moment, partial(world._loop.call_soon, cancel))
        world.until_over()
        world.backend.hold = False
        after = world.play("talk")
        world.until(lambda: after.answers)
        world.settle()
        assert msgspec.json.decode(after.answers[-1].body)["result"] == ["done"] * 3
        assert sorted(world.ends) == sorted(world.runs), "each ended once"
        lawful = Lawful(world)
        lawful.check()
        return lawful


@PLAYS
@pytest.mark.parametrize("now", [True, False])
def test_a_run_may_be_cancelled_after_any_message_and_ends_once(script: str, now: bool):
    for moment in moments(script):
        cancelled(script, moment, now=now)


def test_a_cancelled_retry_does_not_wait_for_its_delay():
    with ScriptedWorld() as world:
        world.begin()
        asked = world.play("retry")
        world.until(lambda: "attempt_failed" in world.kinds())
        began_ms = world.now_ms()
        world.request("cancel", SESSION, run_id=world.runs[0], now=True)
        world.until(lambda: asked.answers)
        assert world.now_ms() - began_ms < 900
        assert msgspec.json.decode(asked.answers[-1].body)["status"] == "cancelled"


def test_every_script_is_played():
    assert ENDS.keys() == SCRIPTS.keys() | set(IMMEDIATE)
