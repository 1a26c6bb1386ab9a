"""The explorer finds what is wrong: each promise of ``machine check`` is broken once on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.machines.machine import (
    ATTACHED,
    DESTROYED,
    Edition,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    set_fields,
)
from rookery.actors.machine_catalogue import MachineEntry
from rookery.ops.machines.exploration import (
    DuplicateOutcome,
    Exploration,
    InputOutcome,
    explore,
    mermaid,
)
from rookery.schemas.envelope import Fact


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    phase: str = "Open"
    count: int = 0
    host: SessionHost = SessionHost()


class Requested(Fact, frozen=True, kw_only=True):
    by: int = 1
    row: str = ""


class Rung(TransitionEffect, frozen=True, kw_only=True):
    """The bell rang."""


def served(c: Counter) -> bool:
    return c.host.phase is ATTACHED


COUNT = Transition(
    "Count",
    "count",
    lambda c, _: c.phase == "Open" and served(c),
    lambda c, a: replace(c, count=c.count + a.by),
)
RING = Transition("Ring", "ring", lambda c, _: served(c), effects=(Rung(),))
CLOSE = Transition(
    "Close", "close", lambda c, _: c.phase == "Open" and c.count > 0 and served(c),
    set_fields(phase="Closed"),
)  # fmt: skip
LATE = Transition("Late", "late", lambda c, _: c.phase == "Closed" and c.host.phase == "Running")
FORGET = Transition("Forget", "forget", lambda c, _: served(c), set_fields(count=0))


def small(*rows: Transition, invariants: tuple[Callable[[Counter], bool], ...] = ()) -> Exploration:
    machine = Machine(
        "counter",
        handle="CounterHandle",
        phases=("Open", "Closed"),
        initial=Counter(),
        inputs={
            row.on: MachineInput(Requested, ("by",) if row.on == "count" else ()) for row in rows
        },
        rows=rows,
        invariants=invariants,
        host_phase=lambda c: c.host.phase,
    )
    hosts = (SessionHost(phase=ATTACHED), SessionHost(phase=DESTROYED))
    return explore(MachineEntry(machine, {"by": (1, 2)}, hosts, within=lambda c: c.count <= 2))


def test_every_state_there_is_a_way_to_is_found_with_its_distance() -> None:
    explored = small(COUNT, CLOSE)
    closed = [("Closed", 1), ("Closed", 2)]
    own = [("Open", 0), ("Open", 1), ("Open", 2), *closed]
    assert explored.states == len(own) * 2 + 1, "at two hosts, and the beginning"
    assert explored.depth == 4, "attached, counted, closed, destroyed"
    assert explored.rows == {"Count", "Close"}
    assert explored.violations == []


def test_what_a_phase_makes_of_an_input() -> None:
    explored = small(COUNT, CLOSE, RING, LATE)
    assert explored.outcome("Open", "count") is InputOutcome.ALLOWED
    assert explored.outcome("Closed", "count") is InputOutcome.NEVER
    assert explored.outcome("Open", "close") is InputOutcome.GUARDED
    assert explored.outcome("Closed", "late") is InputOutcome.REJECTED
    assert explored.outcome("Open", "late") is InputOutcome.NEVER
    assert explored.hosts["count"] == {"Attached"}
    assert explored.dead_ends == ["Closed"]


def test_what_an_immediate_repeat_does() -> None:
    explored = small(COUNT, CLOSE, RING, FORGET)
    assert explored.repeats == {
        "count": {DuplicateOutcome.COUNTED},
        "close": {DuplicateOutcome.REFUSED},
        "ring": {DuplicateOutcome.EFFECTS_AGAIN},
        "forget": {DuplicateOutcome.NO_OP},
    }


def test_a_diagram_has_an_arrow_for_each_pair_of_phases() -> None:
    assert mermaid(small(COUNT, CLOSE, RING)).splitlines() == [
        "stateDiagram-v2",
        "    [*] --> Open",
        "    Open --> Open: count, ring",
        "    Open --> Closed: close",
        "    Closed --> Closed: ring",
        "    Closed --> [*]",
    ]


def at_most_one(c: Counter) -> bool:
    return c.count <= 1


def raise_zero(c: Counter, _: Any) -> Counter:
    return replace(c, count=c.count // (2 - c.count))


def change_in_place(c: Counter, _: Any) -> bool:
    force_setattr(c, "count", c.count)
    force_setattr(c, "phase", "Closed")
    return False


def name_and_refuse(_: Counter, asked: Requested) -> bool:
    force_setattr(asked, "row", "Count")
    return False


@pytest.mark.parametrize(
    ("row", "invariants", "message"),
    [
        (RING, (at_most_one,), "at_most_one does not hold"),
        (Transition("Halve", "halve", lambda *_: False, raise_zero), (), "Halve cannot be folded"),
        (
            Transition("Break", "break", lambda *_: False, lambda *_: None),
            (),
            "into another type",
        ),
        (Transition("Touch", "touch", change_in_place), (), "was changed in place"),
        (Transition("Name", "name", name_and_refuse), (), "was refused"),
    ],
)
def test_a_violation_is_found(
    row: Transition, invariants: tuple[Callable[[Counter], bool], ...], message: str
) -> None:
    violations = small(COUNT, row, invariants=invariants).violations
    assert any(message in violation for violation in violations), violations


def test_rows_of_the_other_edition_must_fold_too() -> None:
    other = Transition("Old", "old", lambda *_: True, raise_zero, edition=Edition.SEED)
    assert any("Old cannot be folded" in found for found in small(COUNT, other).violations)
