"""No crash or cut can block a session for ever: a walk through every state that one can leave.

A run is many commits in several families, and each family reacts to the facts of the others. If a
node dies, is cut off, or is paused for about as long as a claim is valid, a fact may be committed
that no actor ever gets: the turn has ended and its session does not have the end; a call was
requested by the turn and not by the tool family; an intent is committed, and its node is gone; an
approval was granted and released no call. Repeating the reactions after a takeover mends nearly all
of this. The rest would block the session for ever.

So each of three commands must work in every state, by itself: ``cancel`` with ``now`` ends the run,
with a reply and a fact; ``destroy`` ends the session, or names the run in progress, after whose
cancellation it ends the session; the next run is executed and gets its reply, once approvers and
operators have decided open approvals and calls with unknown outcomes.

The states: seven scenarios are played once (``node_remains``): runs in sequence, queued, failing,
cancelled in a call, recovered from a dead node, parked and approved, cancelled while parked. Every
prefix of each scenario's journal is a state, because a node can die with any message; and so is
every prefix without one of its messages, unless a later one depends on it: one family's reaction to
a fact that another family never got. A fresh node whose watermark is beyond all of it loads each
state, so that no takeover repeats a reaction. The walk loads each state as it is, and some once
more with the session in the node's memory before the last message is committed: an owner that was
cut off may have sent it late.

The remedy: an entity that was read from the journal continues with what its state requires
(``ResumesFromState``), after it has read the facts of other families; a command that depends on
another family's facts reads them first (``ReadsBeforeDeciding``). So every command that loads a
session loads its turn, the turn its calls, and these their approvals, and each continues from its
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec
import pytest

from rookery.schemas.facts.turn import TurnLimitReached
from tests.execution.node_remains import STORIES, Left, LeftWorld, left_by
from tests.execution.scripted_driver import SESSION
from tests.kernel.clients import SentRequest

Step = Callable[[LeftWorld], None]
PATIENCE_S = 90.0
"""By the world's clock; longer than any run may take."""
EVERY_STORY = pytest.mark.parametrize("scenario", STORIES, ids=lambda scenario: scenario.__name__)


def cancelled(world: LeftWorld) -> None:
    """Cancel every open run of the session now; each ends."""
    for run_id in world.open_runs:
        asked = send(world, "cancel", run_id=run_id, now=True)
        assert not asked.code, asked.answers[-1].body
        world.until(partial(_has_ended, world, run_id), PATIENCE_S)


def destroyed(world: LeftWorld) -> None:
    """Destroy the session; only a run in progress may delay it."""
    over = world.ends
    asked = send(world, "destroy")
    if asked.code:
        assert asked.code == "GUARD_REJECTED"
        said = asked.answers[-1].body.decode()
        assert not any(run_id in said for run_id in over), "it has ended, and that is on record"
        cancelled(world)
        asked = send(world, "destroy")
    assert not asked.code, asked.answers[-1].body
    assert msgspec.json.decode(asked.answers[-1].body)["phase"] == "Destroyed"


def followed(world: LeftWorld) -> None:
    """Execute the next run; all runs before it have ended then."""
    asked = world.play("talk")
    for _ in range(int(PATIENCE_S)):
        if not asked.answers:
            world.allow_what_waits()
            world.pass_s(1)
    assert msgspec.json.decode(asked.answers[-1].body)["result"] == ["done"] * 3
    assert world.open_runs == []


def send(world: LeftWorld, verb: str, **body: object) -> SentRequest:
    asked = world.ask(verb, SESSION, **body)
    world.until(lambda: asked.answers, PATIENCE_S)
    return asked


def _has_ended(world: LeftWorld, run_id: str) -> bool:
    return run_id not in world.open_runs


@contextmanager
def at(left: Left) -> Iterator[None]:
    """Name the state in the error of a failed walk."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"left by {left.name}")
        raise


COMMANDS = pytest.mark.parametrize("command", [cancelled, destroyed, followed])


@EVERY_STORY
@COMMANDS
def test_cancel_destroy_and_the_next_run_work_wherever_a_crash_leaves_a_session(
    scenario: Step, command: Step
):
    for left in left_by(scenario):
        with at(left), LeftWorld() as world:
            world.take_up(left)
            command(world)


@EVERY_STORY
@COMMANDS
def test_commands_work_after_a_message_that_the_session_never_got(scenario: Step, command: Step):
    for left in [*left_by(scenario)][1::3]:
        *before, late = left.messages
        with at(left), LeftWorld() as world:
            world.take_up(left._replace(messages=tuple(before)))
            world.request("session", SESSION)
            world.lay([late], {})
            command(world)


@COMMANDS
@pytest.mark.parametrize("how", ["budget_exhausted", "turn_limit_reached"])
def test_a_turn_that_a_client_fails_ends_its_run(how: str, command: Step):
    with LeftWorld() as world:
        world.backend.hold = True
        world.begin()
        world.play("send_twice")
        world.until(lambda: "intent_recorded" in world.kinds("tool"))
        send(world, "turns", input=how)
        world.backend.hold = False
        command(world)


def requests_a_call(left: Left) -> bool:
    return b"tool.intent_recorded.v1" in left.messages[-1].body


@COMMANDS
def test_a_turn_that_a_client_failed_on_a_dead_node_ends_its_run(command: Step):
    left = next(one for one in left_by(STORIES[0]) if requests_a_call(one))
    with LeftWorld() as world:
        world.lay(left.messages, left.blobs)
        failed = TurnLimitReached(row="TurnLimitReached", generation=1, run=world.runs[0])
        world.write([failed], "turn", SESSION)
        world.take_up(left._replace(messages=()))
        command(world)
