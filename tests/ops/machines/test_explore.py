"""The explorer finds what is wrong: each promise of ``machine check`` is broken once on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import force_setattr, replace

from rookery.actors.kernel.machines.machine import Edition, Input, Machine, Row, RowEffect, put
from rookery.actors.kernel.machines.session_host import ATTACHED, DESTROYED, Host
from rookery.actors.machine_catalogue import Entry
from rookery.ops.machines.diagram import mermaid
from rookery.ops.machines.explore import Explored, Repeat, Taken, explore
from rookery.schemas.envelope import Fact


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    phase: str = "Open"
    count: int = 0
    host: Host = Host()


class Asked(Fact, frozen=True, kw_only=True):
    by: int = 1
    row: str = ""


class Rung(RowEffect, frozen=True, kw_only=True):
    """Somebody rang."""


def served(c: Counter) -> bool:
    return c.host.phase is ATTACHED


COUNT = Row(
    "Count",
    "count",
    lambda c, _: c.phase == "Open" and served(c),
    lambda c, a: replace(c, count=c.count + a.by),
)
RING = Row("Ring", "ring", lambda c, _: served(c), effects=(Rung(),))
CLOSE = Row(
    "Close", "close", lambda c, _: c.phase == "Open" and c.count > 0 and served(c),
    put(phase="Closed"),
)  # fmt: skip
LATE = Row("Late", "late", lambda c, _: c.phase == "Closed" and c.host.phase == "Running")
FORGET = Row("Forget", "forget", lambda c, _: served(c), put(count=0))


def small(*rows: Row, invariants: tuple[Callable[[Counter], bool], ...] = ()) -> Explored:
    machine = Machine(
        "counter",
        handle="CounterHandle",
        phases=("Open", "Closed"),
        initial=Counter(),
        inputs={row.on: Input(Asked, ("by",) if row.on == "count" else ()) for row in rows},
        rows=rows,
        invariants=invariants,
        host_phase=lambda c: c.host.phase,
    )
    hosts = (Host(phase=ATTACHED), Host(phase=DESTROYED))
    return explore(Entry(machine, {"by": (1, 2)}, hosts, within=lambda c: c.count <= 2))


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
    assert explored.taken("Open", "count") is Taken.ALLOWED
    assert explored.taken("Closed", "count") is Taken.NEVER
    assert explored.taken("Open", "close") is Taken.GUARDED
    assert explored.taken("Closed", "late") is Taken.REJECTED
    assert explored.taken("Open", "late") is Taken.NEVER
    assert explored.hosts["count"] == {"Attached"}
    assert explored.dead_ends == ["Closed"]


def test_what_an_immediate_repeat_does() -> None:
    explored = small(COUNT, CLOSE, RING, FORGET)
    assert explored.repeats == {
        "count": {Repeat.COUNTED},
        "close": {Repeat.REFUSED},
        "ring": {Repeat.TOLD_AGAIN},
        "forget": {Repeat.NO_OP},
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


def name_and_refuse(_: Counter, asked: Asked) -> bool:
    force_setattr(asked, "row", "Count")
    return False


@pytest.mark.parametrize(
    ("row", "invariants", "told"),
    [
        (RING, (at_most_one,), "at_most_one does not hold"),
        (Row("Halve", "halve", lambda *_: False, raise_zero), (), "Halve cannot be folded"),
        (Row("Break", "break", lambda *_: False, lambda *_: None), (), "makes something else"),
        (Row("Touch", "touch", change_in_place), (), "was changed in place"),
        (Row("Name", "name", name_and_refuse), (), "was refused"),
    ],
)
def test_a_broken_promise_is_found(
    row: Row, invariants: tuple[Callable[[Counter], bool], ...], told: str
) -> None:
    violations = small(COUNT, row, invariants=invariants).violations
    assert any(told in violation for violation in violations), violations


def test_rows_of_the_other_edition_must_fold_too() -> None:
    other = Row("Old", "old", lambda *_: True, raise_zero, edition=Edition.SEED)
    assert any("Old cannot be folded" in found for found in small(COUNT, other).violations)
