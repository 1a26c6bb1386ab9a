"""Turn x approval x surface call: a call waits for a person, and meanwhile everything else happens.

A turn waits for one call, the call for an approval. People answer or never do, cancel the turn,
remove the surface, close the session; a tool answers or never does. Boundaries come at any time,
which is more than a turn would do. The owners of turn and surface may be two facts behind the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pytest
from immutables import Map
from msgspec.structs import replace

from rookery.actors.approvals.lifecycle_machine import APPROVALS, ApprovalStatuses
from rookery.actors.kernel.machines.machine import ATTACHED, RUNNING, STOPPED, SessionHost
from rookery.actors.surfaces.state import Surfaces
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.approvals.records import ApprovalStatus
from rookery.schemas.machines.surface import ExternalToolSurfaceBaseState as Base
from rookery.schemas.machines.turn import TurnPhase
from tests.machines.composition import Followed, Happening, by_host, explored, put, told

RUN = "run-1"
BUSY = SessionHost(phase=RUNNING, session_id="s", current_run_id=RUN, pre_run_phase=ATTACHED)
WAITING_TURN = Turn(
    phase=TurnPhase.WAITING_FOR_OPS,
    pending_op_refs=frozenset(["call"]),
    barrier_operation_ids=frozenset(["call"]),
    has_barrier_ops=True,
)
SHOWN = Surfaces(
    known_surfaces=frozenset(["s"]),
    active_surfaces=frozenset(["s"]),
    visible_surfaces=frozenset(["s"]),
    base_state=Map(s=Base.ACTIVE),
)
ENDED = ("answered", "failed")


class Rules(NamedTuple):
    """Ours, beside the machines' own."""

    surface_is_asked_last: bool = True
    """A call is counted at its surface when it is about to be made, not while people think."""
    turn_is_asked_last: bool = True
    """A call is not made for a turn that does not wait for it any more."""
    approvals_expire: bool = True
    """Every approval has an end: ``approval_timeout_ms``."""
    calls_expire: bool = True
    """Every call has a deadline from its intent on."""
    forcing_ends_calls: bool = True
    """To close a surface's connection ends the calls that are on it."""
    closing_ends_calls: bool = True
    """A closed session ends its calls, and its surfaces' connections; the machine takes nothing."""
    ends_are_fenced: bool = True
    """A turn's end commits only if the turn has seen all its session's facts."""


class World(NamedTuple):
    host: Followed = Followed(BUSY, BUSY)
    turn: Turn = WAITING_TURN
    approvals: ApprovalStatuses = ApprovalStatuses()
    surfaces: Surfaces = SHOWN
    call: str = ""
    ends: int = 0
    refused: bool = False
    """Admission told the input that its session was closed."""
    shut: bool = False
    """The closed session's surfaces were let go."""
    made_in_vain: bool = False

    @property
    def status(self) -> ApprovalStatus | None:
        return self.approvals.statuses.get("call")

    @property
    def base(self) -> Base | None:
        return self.surfaces.base_state.get("s")


def following(rules: Rules, world: World) -> Iterator[Happening[World]]:
    yield from the_call(rules, world)
    yield from the_approval(world)
    yield from the_surface(rules, world)
    yield from the_turn(rules, world)
    if not world.host.current:
        yield "the others hear of the host", world._replace(host=world.host.delivered())
    if not world.ends and (after := by_host(world.host, "RuntimeExecutorExited")):
        yield "people stop", world._replace(host=after, refused=True)


def the_call(rules: Rules, world: World) -> Iterator[Happening[World]]:
    if world.call == "":
        params = {"approve_ok": True, "deny_ok": True, "expiry": rules.approvals_expire}
        asked = put(APPROVALS, world.approvals, "create_approval", approval_id="call", **params)
        after = world._replace(approvals=asked, call="asked")
        yield "ask", after if rules.surface_is_asked_last else counted(after)
    if world.call == "asked" and world.status is ApprovalStatus.APPROVED:
        yield "make the call", made(rules, world)
    if world.call == "asked" and world.status in (ApprovalStatus.DENIED, ApprovalStatus.EXPIRED):
        yield "give the call up", world._replace(call="failed")
    if world.call == "made":
        yield "people's tool answers", finished(world, "answered")
        if rules.calls_expire:
            yield "the call's time is up", finished(world, "failed")
        if rules.closing_ends_calls and world.host.copy.phase is STOPPED:
            yield "the session ends the call", world._replace(call="failed")


def made(rules: Rules, world: World) -> World:
    """The last thing before the intent; a surface that says no ends the call."""
    if rules.turn_is_asked_last and world.turn.phase is not TurnPhase.WAITING_FOR_OPS:
        return world._replace(call="failed")
    after = counted(world) if rules.surface_is_asked_last else world
    if after.call == "failed":
        return after
    return after._replace(call="made", made_in_vain=world.turn.phase.is_terminal)


def counted(world: World) -> World:
    """``world`` with the call counted at its surface, or failed."""
    answer = told(SURFACES, world.host.seen_by(world.surfaces), "call_started", surface_id="s")
    if answer is None or answer[1]:
        return world._replace(call="failed")
    return kept(world, answer[0])


def finished(world: World, how: str) -> World:
    after = put(SURFACES, world.host.seen_by(world.surfaces), "call_finished", surface_id="s")
    return (world if after is None else kept(world, after))._replace(call=how)


def the_approval(world: World) -> Iterator[Happening[World]]:
    if world.status is not ApprovalStatus.PENDING:
        return
    for name, on, params in (
        ("people approve", "decide_approval", {"decision": "Approve"}),
        ("people deny", "decide_approval", {"decision": "Deny"}),
        ("the approval's time is up", "observe_approval_expiry", {"expired": True}),
    ):
        after = put(APPROVALS, world.approvals, on, approval_id="call", **params)
        yield name, world._replace(approvals=after)


def the_surface(rules: Rules, world: World) -> Iterator[Happening[World]]:
    surfaces, surface = world.host.seen_by(world.surfaces), {"surface_id": "s"}
    if rules.closing_ends_calls and world.host.copy.phase is STOPPED and not world.shut:
        yield "let the surfaces go", world._replace(shut=True)
    after = put(SURFACES, surfaces, "stage_remove", **surface, now_ms=0)
    if after and not surfaces.next_staged_intent_sequence:
        yield "people remove the surface", kept(world, after)
    seen = {"now_ms": 0, "staged_seq": 1, "applied_at_turn": 1}
    if after := put(SURFACES, surfaces, "apply_boundary", **surface, **seen):
        yield "a boundary", kept(world, after)
    if after := put(SURFACES, surfaces, "finalize_removal_clean", **surface):
        yield "the surface is gone", kept(world, after)
    if after := put(SURFACES, surfaces, "finalize_removal_forced", **surface):
        cut = rules.forcing_ends_calls and world.call == "made"
        yield (
            "the removal's time is up",
            kept(world, after)._replace(call="failed" if cut else world.call),
        )


def the_turn(rules: Rules, world: World) -> Iterator[Happening[World]]:
    turn = world.host.seen_by(world.turn)
    steps = ["cancellation_observed", "tool_calls_resolved", "boundary_complete"]
    for on, name in [(on, on) for on in steps] + [("cancel_now", "people cancel")]:
        satisfied = on != "tool_calls_resolved" or turn.barrier_satisfied
        if satisfied and (after := put(TURN, turn, on)):
            yield name, world._replace(turn=replace(after, host=SessionHost()))
    after = put(TURN, turn, "ops_barrier_satisfied", operation_ids=["call"])
    if after and world.call in ENDED:
        yield "the call's end is heard of", world._replace(turn=replace(after, host=SessionHost()))
    if not world.ends and (world.host.current or not rules.ends_are_fenced):
        ends = {TurnPhase.COMPLETED: "run_completed", TurnPhase.CANCELLED: "run_cancelled"}
        on = ends.get(turn.phase)
        if on and (after := put(TURN, turn, on, run_id=RUN)):
            yield on, world._replace(turn=replace(after, host=SessionHost()), ends=1)


def kept(world: World, surfaces: Surfaces) -> World:
    return world._replace(surfaces=replace(surfaces, host=SessionHost()))


# --- what must hold -------------------------------------------------------------------------------


def on_a_removed_surface(world: World) -> bool:
    return world.call == "made" and world.base is Base.REMOVED


def waits(world: World) -> bool:
    """The input for its end, the call for its tool, people's inbox and a removal for theirs."""
    return (
        not (world.ends or world.refused)
        or world.call == "made"
        or world.status is ApprovalStatus.PENDING
        or (world.base is Base.REMOVING and not world.shut)
    )


def broken(rules: Rules) -> dict[str, list[str]]:
    """What goes wrong, and the shortest way there."""
    worlds = explored(World(), partial(following, rules))
    never: dict[str, Callable[[World], bool]] = {
        "a call on a removed surface": on_a_removed_surface,
        "two ends": lambda world: world.ends + world.refused > 1,
        "made in vain": lambda world: world.made_in_vain,
    }
    ways = {name: worlds.way_to(wrong) for name, wrong in never.items()}
    ways["waits for ever"] = worlds.stuck(waits, lambda name: name.startswith("people"))
    return {name: way for name, way in ways.items() if way is not None}


def test_with_all_rules_no_client_waits_for_ever_and_no_call_is_on_a_removed_surface() -> None:
    worlds = explored(World(), partial(following, Rules()))
    assert len(worlds) > 1_000
    assert broken(Rules()) == {}
    assert worlds.way_to(lambda world: world.call == "answered" and world.ends == 1) is not None


@pytest.mark.long_form
@pytest.mark.parametrize(
    ("rule", "wrong"),
    [
        ("surface_is_asked_last", "a call on a removed surface"),
        ("turn_is_asked_last", "made in vain"),
        ("approvals_expire", "waits for ever"),
        ("calls_expire", "waits for ever"),
        ("forcing_ends_calls", "a call on a removed surface"),
        ("closing_ends_calls", "waits for ever"),
        ("ends_are_fenced", "two ends"),
    ],
)
def test_without_a_rule_something_goes_wrong(rule: str, wrong: str) -> None:
    assert wrong in broken(Rules()._replace(**{rule: False}))
