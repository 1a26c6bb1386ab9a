"""Surface removal x in-flight call: calls begin and end while their surface goes and comes again.

Two calls, one surface, two lives of it. Its owner may be two facts behind the host, which people
may stop. The machine counts calls and knows none of them: their owner must.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import ATTACHED, STOPPED, SessionHost
from rookery.actors.surfaces.state import Surfaces
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.schemas.machines.surface import ExternalToolSurfaceBaseState as Base
from rookery.schemas.machines.transition import CloseSurfaceConnection
from tests.machines.composition import Followed, Happening, by_host, explored, told

OPEN = SessionHost(phase=ATTACHED, session_id="s")
SHOWN = Surfaces(
    known_surfaces=frozenset(["s"]),
    active_surfaces=frozenset(["s"]),
    visible_surfaces=frozenset(["s"]),
    base_state=Map(s=Base.ACTIVE),
)
STAGED_MAX = 2
"""A removal and an addition."""


class Rules(NamedTuple):
    """Ours, beside the machine's own."""

    late_answers_are_dropped: bool = True
    """A call that a forced removal has ended is ended: its answer is no end of another's."""
    forcing_ends_calls: bool = True
    """To close a surface's connection ends the calls that are on it."""
    boundaries_quote_what_they_saw: bool = True
    """A boundary takes up the intent it was computed for, not whichever stands."""
    closing_lets_go: bool = True
    """A closed session's connections are closed; the machine takes no input any more."""


class World(NamedTuple):
    host: Followed = Followed(OPEN, OPEN)
    surfaces: Surfaces = SHOWN
    calls: tuple[str, str] = ("", "")
    """Of each: not made, made, cut off (its tool still works), ended."""
    connected: bool = True
    intent: int = 0
    """The boundary that is on its way has seen this one."""
    early: bool = False
    """A boundary took up an intent that came after it."""

    @property
    def base(self) -> Base | None:
        return self.surfaces.base_state.get("s")

    @property
    def staged(self) -> int | None:
        return self.surfaces.staged_intent_sequence.get("s")


def following(rules: Rules, world: World) -> Iterator[Happening[World]]:
    for number in range(len(world.calls)):
        yield from one_call(rules, world, number)
    yield from removal(rules, world)
    yield from addition(rules, world)
    if not world.host.current:
        yield "the surfaces hear of the host", world._replace(host=world.host.delivered())
    if after := by_host(world.host, "RuntimeExecutorExited"):
        yield "people stop", world._replace(host=after)
    if rules.closing_lets_go and world.host.copy.phase is STOPPED and world.connected:
        yield "let the connection go", cut_off(world)._replace(connected=False)


def one_call(rules: Rules, world: World, number: int) -> Iterator[Happening[World]]:
    match world.calls[number]:
        case "":
            answer = told(SURFACES, seen(world), "call_started", surface_id="s")
            if answer is not None and not answer[1]:
                yield f"people make call {number}", called(kept(world, answer[0]), number, "made")
        case "made":
            yield f"call {number} ends", ended(world, number)
        case "cut off":
            after = called(world, number, "ended")
            yield (
                f"call {number} answers late",
                (after if rules.late_answers_are_dropped else ended(world, number)),
            )


def ended(world: World, number: int) -> World:
    answer = told(SURFACES, seen(world), "call_finished", surface_id="s")
    return called(world if answer is None else kept(world, answer[0]), number, "ended")


def removal(rules: Rules, world: World) -> Iterator[Happening[World]]:
    count = world.surfaces.next_staged_intent_sequence
    if count < STAGED_MAX and (
        answer := told(SURFACES, seen(world), "stage_remove", surface_id="s", now_ms=0)
    ):
        yield "people stage a removal", kept(world, answer[0])
    if world.staged is not None and not world.intent:
        yield "compute a boundary", world._replace(intent=world.staged)
    if world.intent:
        quoted = world.intent if rules.boundaries_quote_what_they_saw else world.staged or 0
        yield "apply the boundary", boundary(world, quoted)
    for on in ("finalize_removal_clean", "finalize_removal_forced"):
        if answer := told(SURFACES, seen(world), on, surface_id="s"):
            after = kept(world, answer[0])
            closed = any(isinstance(effect, CloseSurfaceConnection) for effect in answer[1])
            if rules.forcing_ends_calls:
                after = cut_off(after)
            yield on, after._replace(connected=world.connected and not closed)


def boundary(world: World, quoted: int) -> World:
    params = {"surface_id": "s", "now_ms": 0, "staged_seq": quoted, "applied_at_turn": 1}
    answer = told(SURFACES, seen(world), "apply_boundary", **params)
    after = world._replace(intent=0)
    if answer is None:
        return after
    return kept(after, answer[0])._replace(early=world.early or quoted != world.intent)


def addition(rules: Rules, world: World) -> Iterator[Happening[World]]:
    count = world.surfaces.next_staged_intent_sequence
    if count < STAGED_MAX and (
        answer := told(SURFACES, seen(world), "stage_add", surface_id="s", now_ms=0)
    ):
        yield "people stage an addition", kept(world, answer[0])
    job = {
        "task_seq": world.surfaces.pending_task_sequence.get("s", 0),
        "lineage_seq": world.surfaces.pending_lineage_sequence.get("s", 0),
    }
    if job["task_seq"] and (
        answer := told(SURFACES, seen(world), "mark_pending_succeeded", surface_id="s", **job)
    ):
        yield "connect", kept(world, answer[0])._replace(connected=True)


def seen(world: World) -> Surfaces:
    known: Surfaces = world.host.seen_by(world.surfaces)
    return known


def kept(world: World, surfaces: Surfaces) -> World:
    return world._replace(surfaces=replace(surfaces, host=SessionHost()))


def called(world: World, number: int, how: str) -> World:
    calls = list(world.calls)
    calls[number] = how
    return world._replace(calls=(calls[0], calls[1]))


def cut_off(world: World) -> World:
    first, second = ("cut off" if call == "made" else call for call in world.calls)
    return world._replace(calls=(first, second))


# --- what must hold -------------------------------------------------------------------------------


def on_no_connection(world: World) -> bool:
    return "made" in world.calls and not world.connected


def on_a_removed_surface(world: World) -> bool:
    return "made" in world.calls and world.base is Base.REMOVED


def miscounted(world: World) -> bool:
    """Of the calls that are made, while the session is open, none is forgotten."""
    return world.connected and world.surfaces.inflight_calls.get("s", 0) < world.calls.count("made")


def waits(world: World) -> bool:
    return "made" in world.calls or (world.base is Base.REMOVING and world.connected)


def broken(rules: Rules) -> dict[str, list[str]]:
    """What goes wrong, and the shortest way there."""
    worlds = explored(World(), partial(following, rules))
    never: dict[str, Callable[[World], bool]] = {
        "a call on no connection": on_no_connection,
        "a call on a removed surface": on_a_removed_surface,
        "miscounted": miscounted,
        "an intent is taken up early": lambda world: world.early,
    }
    ways = {name: worlds.way_to(wrong) for name, wrong in never.items()}
    ways["waits for ever"] = worlds.stuck(waits, lambda name: name.startswith("people"))
    return {name: way for name, way in ways.items() if way is not None}


def test_with_all_rules_no_call_is_on_a_surface_that_is_gone() -> None:
    worlds = explored(World(), partial(following, Rules()))
    assert len(worlds) > 500
    assert broken(Rules()) == {}
    assert worlds.way_to(lambda world: world.base is Base.REMOVED) is not None


@pytest.mark.long_form
@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("late_answers_are_dropped", "miscounted"),
        ("forcing_ends_calls", "a call on a removed surface"),
        ("boundaries_quote_what_they_saw", "an intent is taken up early"),
        ("closing_lets_go", "waits for ever"),
    ],
)
def test_without_a_rule_something_goes_wrong(rule: str, wrong: str) -> None:
    assert wrong in broken(Rules()._replace(**{rule: False}))
