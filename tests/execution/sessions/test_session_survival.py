"""A session is never a brick: a walk through every state that a crash or a cut can leave it in.

A run is many commits in several families, and each family learns of the others' by being handed
their facts. Where a node dies, is cut off, or is paused for about as long as a claim lives, a fact
may come to stand of which nobody is ever told: the turn has ended and its session does not know;
a call was wanted and never requested; an intent stands, and whoever recorded it is gone; an
approval was given and released nothing. Handing over again after a takeover mends nearly all of
this. What it does not find would stay so for ever, and a session with it.

So three things are to help whoever meets such a session, and each by itself:

    cancel now        ends the run: it is answered, and the session has it on record
    destroy           ends the session, or says which run is really under way; with that one
                      cancelled it ends the session
    the next run      is executed and answered, once somebody has said what only people can say
                      of approvals and of calls nobody knows

The states. Seven stories are played once (``left_behind``): runs one after the other, queued,
failing, cancelled in a call, recovered from a dead node, parked and approved, cancelled while
parked. Of each story's journal every prefix is a state, for a node can die with any message; and
so is every prefix without one of its messages, as far as nothing follows from that message: what
one family did about a fact, while another one never heard of it. Each state is laid before a fresh
node whose horizon lies beyond all of it, so that no takeover hands it anything. That is walked
once as it stands, and once more with the session in the node's memory before the last message
comes to stand: an owner that was cut off may have sent it late.

How it is mended. An entity that was read from the journal goes on with what its state calls for
(``ResumesFromState``), after it has read what other families did; a command that rests on what
another family did reads that first (``ReadsBeforeDeciding``). So whatever brings a session into
memory brings its turn there, that its calls, and these their approvals, each of which goes on from
where it stands.
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

Story = Callable[[LeftWorld], None]
PATIENCE_S = 30.0
"""By the world's clock: longer than any run may take."""
EVERY_STORY = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)


def cancelled(world: LeftWorld) -> None:
    """Every run of the session that has not ended is cancelled now, and so ends."""
    for run_id in world.open_runs:
        asked = told(world, "cancel", run_id=run_id, now=True)
        assert not asked.code, asked.answers[-1].body
        world.until(partial(_has_ended, world, run_id), PATIENCE_S)


def destroyed(world: LeftWorld) -> None:
    """The session is over, with nothing but a run that is really under way before it."""
    over = world.ends
    asked = told(world, "destroy")
    if asked.code:
        assert asked.code == "GUARD_REJECTED"
        said = asked.answers[-1].body.decode()
        assert not any(run_id in said for run_id in over), "it has ended, and that is on record"
        cancelled(world)
        asked = told(world, "destroy")
    assert not asked.code, asked.answers[-1].body
    assert msgspec.json.decode(asked.answers[-1].body)["phase"] == "Destroyed"


def followed(world: LeftWorld) -> None:
    """The next run is executed and answered, and so all before it have ended."""
    asked = world.play("talk")
    for _ in range(int(PATIENCE_S)):
        if not asked.answers:
            world.allow_what_waits()
            world.pass_s(1)
    assert msgspec.json.decode(asked.answers[-1].body)["result"] == ["done"] * 3
    assert world.open_runs == []


def told(world: LeftWorld, verb: str, **body: object) -> SentRequest:
    asked = world.ask(verb, SESSION, **body)
    world.until(lambda: asked.answers, PATIENCE_S)
    return asked


def _has_ended(world: LeftWorld, run_id: str) -> bool:
    return run_id not in world.open_runs


@contextmanager
def at(left: Left) -> Iterator[None]:
    """Where the walk is, should it end there."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"left by {left.name}")
        raise


COMMANDS = pytest.mark.parametrize("command", [cancelled, destroyed, followed])


@EVERY_STORY
@COMMANDS
def test_cancel_destroy_and_the_next_run_work_wherever_a_crash_leaves_a_session(
    story: Story, command: Story
):
    for left in left_by(story):
        with at(left), LeftWorld() as world:
            world.take_up(left)
            command(world)


@EVERY_STORY
@COMMANDS
def test_commands_work_after_a_message_that_the_session_never_got(story: Story, command: Story):
    for left in [*left_by(story)][1::3]:
        *before, late = left.messages
        with at(left), LeftWorld() as world:
            world.take_up(left._replace(messages=tuple(before)))
            world.told("session", SESSION)
            world.lay([late], {})
            command(world)


@COMMANDS
@pytest.mark.parametrize("how", ["budget_exhausted", "turn_limit_reached"])
def test_a_turn_that_a_client_fails_ends_its_run(how: str, command: Story):
    with LeftWorld() as world:
        world.workshop.hold = True
        world.begin()
        world.play("send_twice")
        world.until(lambda: "intent_recorded" in world.kinds("tool"))
        told(world, "turns", input=how)
        world.workshop.hold = False
        command(world)


@COMMANDS
def test_a_turn_that_a_client_failed_on_a_dead_node_ends_its_run(command: Story):
    left = next(one for one in left_by(STORIES[0]) if one.messages[-1].entity.family == "tool")
    with LeftWorld() as world:
        world.lay(left.messages, left.blobs)
        failed = TurnLimitReached(row="TurnLimitReached", generation=1, run=world.runs[0])
        world.write([failed], "turn", SESSION)
        world.take_up(left._replace(messages=()))
        command(world)
