"""A session survives a family whose history cannot be folded.

A journal message may be damaged: it does not continue its chain, or is no valid JSON. The actor of
that entity can decide nothing. Its session decides without it: the run fails with a fact that names
the reason, and clients get the remedy, which is to destroy the session. No further run of the
session is executed, because its memory depends on the broken history. ``destroy`` ends the
generation, and a fact restarts the broken history: the messages before it remain, and ``journal
verify`` still names them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from rookery.bus.ports import StoredMessage
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import HELD_BY, EntityId, HistoryRestart
from rookery.schemas.facts.session import RunFailed
from rookery.schemas.facts.turn import Failed
from tests.execution.node_remains import Left, LeftWorld, approved, left_by, plain, queued
from tests.execution.scripted_driver import SESSION
from tests.execution.sessions.test_session_survival import at, cancelled, send
from tests.kernel.clients import SentRequest

DAMAGES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "changed": lambda body: body + b" ",
    "unreadable": lambda body: body[: len(body) // 2],
}
CODES: Final = ("CHAIN_BROKEN", "FACT_INVALID")
EVERY_DAMAGE = pytest.mark.parametrize("damage", DAMAGES)
STORIES: Final = (queued, approved)
TAKEN_OVER_S: Final = 10.0
STRIDE: Final = 4
"""One of this many states of a scenario: walking all of them takes half a minute."""


def walk(family: str, damage: str, check: Callable[[LeftWorld], None]) -> None:
    """States of the scenarios, with the first or the last message of the family damaged."""
    walked = 0
    for left in (left for scenario in STORIES for left in [*left_by(scenario)][::STRIDE]):
        places = [n for n, one in enumerate(left.messages, 1) if one.entity.family == family]
        for place in sorted({*places[:1], *places[-1:]}):
            with at(left._replace(name=f"{left.name}, {place} damaged")), LeftWorld() as world:
                world.take_up(left, damaged=hurt(left, place, damage))
                check(world)
                walked += 1
    assert walked > 1


def hurt(left: Left, place: int, damage: str) -> dict[int, bytes]:
    return {place: DAMAGES[damage](left.messages[place - 1].body)}


def open_runs_are_cancelled(world: LeftWorld) -> None:
    cancelled(world)


def it_is_destroyed_and_begins_anew(world: LeftWorld) -> None:
    """Destroy at once, or after the run named in the refusal was cancelled."""
    asked = send(world, "destroy")
    if asked.code:
        assert asked.code == "GUARD_REJECTED", asked.answers[-1].body
        cancelled(world)
        asked = send(world, "destroy")
    view = fields(asked)
    assert view["phase"] == "Destroyed"
    after = result_at_end(world)
    assert after["result"] == ["done"] * 3, after
    assert fields(send(world, "session"))["generation"] == view["generation"] + 1
    assert world.request("destroy", SESSION).code == ""


def the_next_run_is_answered(world: LeftWorld) -> None:
    """The run is executed, or its error has a reason and a remedy."""
    after = result_at_end(world)
    if after["result"] != ["done"] * 3:
        assert after["error"]["code"] in CODES, after
        assert after["error"]["hint"] == f"rookery sessions destroy {SESSION}"


def result_at_end(world: LeftWorld) -> dict[str, Any]:
    asked = world.play("talk")
    for _ in range(30):
        if not asked.answers:
            world.allow_what_waits()
            world.pass_s(1)
    return fields(asked)


def fields(asked: SentRequest) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(asked.answers[-1].body)
    return found


OF_A_RUN = pytest.mark.parametrize("family", ["turn", "approval"])
CHECKS = pytest.mark.parametrize(
    "check",
    [open_runs_are_cancelled, it_is_destroyed_and_begins_anew, the_next_run_is_answered],
)


@EVERY_DAMAGE
@OF_A_RUN
@CHECKS
def test_cancel_destroy_and_the_next_run_work_beside_a_broken_family(
    family: str, damage: str, check: Callable[[LeftWorld], None]
):
    walk(family, damage, check)


@EVERY_DAMAGE
def test_a_session_with_a_broken_history_is_destroyed_and_restarts(damage: str):
    walk("session", damage, its_session_begins_anew)


def its_session_begins_anew(world: LeftWorld) -> None:
    """Every other command is refused with this remedy."""
    for verb, body in (("cancel", {"run_id": "run", "now": True}), ("run", {"code": "talk"})):
        refused = send(world, verb, **body)
        assert refused.code in CODES
        assert fields(refused)["error"]["hint"] == f"rookery sessions destroy {SESSION}"
    it_is_destroyed_and_begins_anew(world)


# --- on record ------------------------------------------------------------------------------------


def whole(scenario: Callable[[LeftWorld], None]) -> Left:
    """Play the scenario to its end."""
    return max(left_by(scenario), key=lambda left: len(left.messages))


def broken_links(messages: list[StoredMessage]) -> list[int]:
    """The sequences of messages that do not continue their entity's chain."""
    before: dict[EntityId, str] = {}
    found = []
    for one in messages:
        if chain(before.get(one.entity, ZERO_CHAIN), one.body) != one.chain:
            found.append(one.sequence)
        before[one.entity] = one.chain
    return found


@pytest.mark.parametrize("family", ["session", "turn", "approval"])
def test_a_restarted_history_has_a_fact_and_continues_the_chain(family: str):
    left = whole(approved)
    place = max(n for n, one in enumerate(left.messages, 1) if one.entity.family == family)
    with LeftWorld() as world:
        world.take_up(left, damaged=hurt(left, place, "changed"))
        it_is_destroyed_and_begins_anew(world)
        (restart,) = (f for f in world.of_family(family) if isinstance(f, HistoryRestart))
        assert (restart.code, restart.after_sequence) == ("CHAIN_BROKEN", place)
        assert broken_links(world.stored("", SESSION)) == [place]
        held = [family, *(held for held, by in HELD_BY.items() if by == family)]
        ids = [fact.id for one in held for fact in world.of_family(one)]
        numbers = sorted(int(one.rpartition(".")[2]) for one in ids)
        assert all(after == one + 1 for one, after in pairwise(numbers)), "no number twice"
        world.nodes[-1].crash()
        world.begin()
        world.pass_s(TAKEN_OVER_S)
        assert result_at_end(world)["result"] == ["done"] * 3, "another node reads the same"


@pytest.mark.parametrize(("family", "scenario"), [("turn", queued), ("approval", approved)])
def test_a_run_in_progress_fails_with_a_fact_that_names_the_broken_history(
    family: str, scenario: Callable[[LeftWorld], None]
):
    left = next(one for one in left_by(scenario) if one.messages[-1].entity.family == family)
    place = max(n for n, one in enumerate(left.messages, 1) if one.entity.family == family)
    with LeftWorld() as world:
        world.take_up(left, damaged=hurt(left, place, "unreadable"))
        result_at_end(world)
        if family == "turn":
            failed = next(f for f in world.of_family("session") if isinstance(f, RunFailed))
            error = failed.error
        else:
            failed = next(f for f in world.of_family("turn") if isinstance(f, Failed))
            error = failed.result.error
        assert failed.run == world.runs[0]
        assert error.code in CODES


def test_a_history_of_another_version_waits_for_it_unless_the_run_is_cancelled():
    left = next(one for one in left_by(plain) if len(one.messages) == 3)
    accepted, started, asked_for = left.messages
    newer = started.body.replace(b"turn.primitive_applied.v1", b"turn.to_come.v1")
    link = chain(ZERO_CHAIN, newer)
    written = (
        replace(started, body=newer, chain=link),
        replace(asked_for, chain=chain(link, asked_for.body)),
    )
    with LeftWorld() as world:
        world.take_up(left._replace(messages=(accepted, *written)))
        asked = world.play("talk")
        world.pass_s(30)
        assert not asked.answers
        cancelled(world)
        assert fields(asked)["error"]["code"] == "FACT_UNKNOWN"
