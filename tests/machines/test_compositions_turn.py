"""Session shutdown x running turn: whatever is shut down while a turn runs, its input ends once.

Admission moves the host; the turn knows it from facts, admission knows the turn's end from a fact,
either may be behind. People retire, stop and destroy the session whenever they like. With all rules
nothing goes wrong; without any one of them something does, and that is what the rule is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import ATTACHED, RUNNING, SessionHost
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.machines.turn import TurnPhase
from tests.machines.composition import Followed, Happening, by_host, explored, put

RUN = "run-1"
OPEN = SessionHost(phase=ATTACHED, session_id="s")
START = {
    "run_id": RUN,
    "primitive_kind_in": "ConversationTurn",
    "shape": "Conversation",
    "vision": False,
    "image_results": False,
    "max_retries": 0,
}
STEPS = (
    *("primitive_applied", "llm_returned_terminal", "boundary_complete"),
    *("cancel_now", "cancellation_observed"),
)


class Rules(NamedTuple):
    """Ours, beside the machines' own."""

    starts_are_fenced: bool = True
    """``turn.started`` commits only if the turn has seen all its session's facts."""
    ends_are_fenced: bool = True
    """So do the turn's terminal facts."""
    closing_is_fenced: bool = True
    """A session is closed only by an admission that has seen all the turn's facts."""
    closing_minds_the_end: bool = True
    """And if the turn's end is among them its run is committed, not refused."""
    ends_once: bool = True
    """A run has one reported end; the machine would overwrite it with another."""
    commits_at_rest: bool = True
    """A run is committed when its turn's end was seen (``queue``)."""
    drains_the_retired: bool = True
    """A session that is retired under its run takes it up as a queued one (``decision``)."""
    refuses_the_stranded: bool = True
    """A closed session's run learns it in the commit that closes it (``decision``)."""


class World(NamedTuple):
    host: Followed = Followed(OPEN, OPEN)
    turn: Turn = Turn()
    ends: int = 0
    """How many the turn told of the run."""
    seen: int = 0
    """How many of them admission was handed."""
    prepared: bool = False
    input_ended: str = ""
    started_in_vain: bool = False
    """A turn began whose run had lost the session."""


def following(rules: Rules, world: World) -> Iterator[Happening[World]]:
    yield from the_queue(rules, world)
    yield from people(rules, world)
    yield from the_turn(rules, world)
    if not world.host.current:
        yield "the turn hears of the host", world._replace(host=world.host.delivered())
    if world.seen < world.ends:
        yield "admission hears of the end", world._replace(seen=world.seen + 1)


def the_queue(rules: Rules, world: World) -> Iterator[Happening[World]]:
    host = world.host.now
    if world.input_ended:
        return
    if not world.prepared and (after := by_host(world.host, "prepare", run_id=RUN)):
        yield "prepare", world._replace(host=after, prepared=True)
    drained = rules.drains_the_retired and (host.current_run_id or not world.prepared)
    if drained and (after := by_host(world.host, "DrainQueuedRun", run_id=RUN)):
        yield "drain", world._replace(host=after, prepared=True)
    if (world.seen or not rules.commits_at_rest) and (
        after := by_host(world.host, "commit", input_id="input", run_id=RUN)
    ):
        yield "commit", world._replace(host=after, input_ended="committed")


def people(rules: Rules, world: World) -> Iterator[Happening[World]]:
    if after := by_host(world.host, "Retire", session_id_in="s"):
        yield "people retire", world._replace(host=after)
    if rules.closing_is_fenced and world.seen < world.ends:
        return
    closed = world.input_ended
    if not closed and rules.refuses_the_stranded:
        closed = "committed" if world.seen and rules.closing_minds_the_end else "refused"
    for on, params in (("RuntimeExecutorExited", {}), ("Destroy", {"session_id_in": "s"})):
        if after := by_host(world.host, on, **params):
            yield f"people cause {on}", world._replace(host=after, input_ended=closed)


def the_turn(rules: Rules, world: World) -> Iterator[Happening[World]]:
    """It reacts to a run being prepared, so it never writes the host by itself."""
    host, turn = world.host, world.host.seen_by(world.turn)
    ready = turn.phase is TurnPhase.READY and host.copy.current_run_id == RUN
    started = put(TURN, turn, "start_conversation_run", **START) if ready else None
    if started and (host.current or not rules.starts_are_fenced):
        vain = (host.now.phase, host.now.current_run_id) != (RUNNING, RUN)
        yield "start", kept(world, started)._replace(started_in_vain=vain)
    for on in () if ready else STEPS:
        if after := put(TURN, turn, on):
            yield on, kept(world, after)
    if world.ends < (1 if rules.ends_once else 2) and (host.current or not rules.ends_are_fenced):
        ends = {TurnPhase.COMPLETED: ["run_completed"], TurnPhase.CANCELLED: ["run_cancelled"]}
        if not rules.ends_once and turn.phase.is_terminal:
            ends[turn.phase] = ["run_completed", "run_cancelled"]
        for on in ends.get(turn.phase, ()):
            if after := put(TURN, turn, on, run_id=RUN):
                yield on, kept(world, after)._replace(ends=world.ends + 1)


def kept(world: World, turn: Turn) -> World:
    return world._replace(turn=replace(turn, host=SessionHost()))


# --- what must hold -------------------------------------------------------------------------------


def two_ends(world: World) -> bool:
    return world.ends + (world.input_ended == "refused") > 1


def waits(world: World) -> bool:
    return not world.input_ended


def left_behind(world: World) -> bool:
    """The run is over and its turn is in the middle: no other could ever start."""
    return world.input_ended == "committed" and not world.ends


def unforced(name: str) -> bool:
    return name.startswith("people")


def broken(rules: Rules) -> dict[str, list[str]]:
    """What goes wrong, and the shortest way there."""
    worlds = explored(World(), partial(following, rules))
    never: dict[str, Callable[[World], bool]] = {
        "two ends": two_ends,
        "left behind": left_behind,
        "started in vain": lambda world: world.started_in_vain,
    }
    ways = {name: worlds.way_to(wrong) for name, wrong in never.items()}
    ways["waits for ever"] = worlds.stuck(waits, unforced)
    return {name: way for name, way in ways.items() if way is not None}


def test_with_all_rules_every_input_ends_once_whatever_is_shut_down() -> None:
    worlds = explored(World(), partial(following, Rules()))
    assert len(worlds) > 100
    assert broken(Rules()) == {}
    ended = {"", "committed", "refused"}
    assert all(worlds.way_to(lambda w, how=how: w.input_ended == how) is not None for how in ended)


@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("starts_are_fenced", "started in vain"),
        ("ends_are_fenced", "two ends"),
        ("closing_is_fenced", "two ends"),
        ("closing_minds_the_end", "two ends"),
        ("ends_once", "two ends"),
        ("commits_at_rest", "left behind"),
        ("drains_the_retired", "waits for ever"),
        ("refuses_the_stranded", "waits for ever"),
    ],
)
def test_without_a_rule_something_goes_wrong(rule: str, wrong: str) -> None:
    assert wrong in broken(Rules()._replace(**{rule: False}))
