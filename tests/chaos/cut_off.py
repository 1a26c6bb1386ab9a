"""Cut a node off at the very message that matters, and look at what is done twice or never ends.

Goal: a node that is cut off or paused for about as long as a claim lives does nothing more, and
nothing it left behind is lost. Method: a recipe lets one program run on the far node, cuts its
line as a certain message leaves, waits until the other node has taken over and an operator has
answered, and lets the line go on.

    python -m tests.chaos.cut_off RECIPE|all [--times N] [--claim-s 6]

prints the story of each run. The suite runs each recipe once with a claim of two seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from rookery.bus.server.server import EmbeddedServer
from tests.bus.proxy import DOWN, UP, Way
from tests.chaos.cut_judge import faults, late_acts, timeline
from tests.chaos.cut_people import run_by_inbox
from tests.chaos.cut_realm import CutRealm
from tests.chaos.cut_record import SessionRecord
from tests.stock_client import until

__all__ = ["RECIPES", "Outcome", "Recipe", "cook"]

INTENT = b"tool.intent_recorded"
SPIN = "x = 0\nfor i in range(3_000_000):\n    x += i\n"
"""A successor has this to do before it comes to where the program was."""
PATIENCE_S = 45.0
LOOKS_ON_S = 1.0
"""How long a run that has ended is watched for a late execution, after the time its first attempt
had."""


class Recipe(NamedTuple):
    """Which program, what stops when, and when it goes on."""

    program: str
    """``{late_s}`` is a time after which another node has taken over and was answered."""
    rule: str
    message: tuple[bytes, ...] = (INTENT,)
    """With this message, which names the session too, the cut begins."""
    cut: Literal["answers", "both", "node"] = "answers"
    """``both`` ways; ``answers``: the message still arrives, and then nothing; ``node``: the same,
    and it is the process that is stopped."""
    after_s: float = 0.0
    """How long after the message."""
    back: Literal["retried", "soon", "claimed"] = "soon"
    """When the operator's retry is done; then, or a while before the tool's time is over; when
    the other node has just claimed the session."""
    lost: bool = False
    """What the line held is lost."""
    wall_ms: int = 60_000
    worker: bool = False


RECIPES = {
    "twice-hole": Recipe("charge(1)", "an ack that comes late has no effect"),
    "twice-reset": Recipe("charge(1)", "nor has an intent whose ack is lost", lost=True),
    "late-arguments": Recipe(
        "charge(1, 'x' * 300_000)",
        "a call whose arguments come late is not made",
        (INTENT, b"$JS.API.DIRECT.GET", b"_BLOBS"),
    ),
    "paused": Recipe("charge(1)", "a node that was stopped makes no call it meant to", cut="node"),
    "lost-step": Recipe(
        SPIN + "charge(1)",
        "a step that is stored late is gone on with",
        (b"turn.tool_calls_returned",),
        cut="both",
        back="claimed",
    ),
    "loose-end": Recipe(
        SPIN + "slow_charge(1, 3.0)",
        "an end of a turn that is stored late ends its run",
        (b"turn.failed",),
        cut="both",
        back="claimed",
        wall_ms=2_500,
    ),
    "late-job": Recipe(
        "till_charge(1)",
        "a job that comes late to its worker is not done",
        (INTENT, b".tool.till.charge"),
        cut="both",
        back="retried",
        worker=True,
    ),
    "slow-tool": Recipe(
        "slow_charge(1, {late_s})",
        "a call that is still made is not made again",
        cut="both",
        after_s=0.5,
    ),
}


class Outcome(NamedTuple):
    """One run of a recipe."""

    faults: list[str]
    lines: list[str]
    """The story, in the order of time."""


async def cook(realm: CutRealm, recipe: Recipe) -> Outcome:
    """Run the recipe once, on a session that the far node holds."""
    await realm.settled()
    (session,) = realm.sessions(1)
    cut = asyncio.get_running_loop().create_future()
    realm.line.watch = _watch(realm, recipe, session, cut)
    program = recipe.program.format(late_s=realm.tool_time_s + 0.2)
    body = {"code": program, "limits": {"wall_ms": recipe.wall_ms}}
    running = asyncio.create_task(run_by_inbox(realm.client, realm.record, session, body))
    try:
        cut_s = await asyncio.wait_for(cut, 90)
        await until(lambda: realm.taken_over(cut_s, session), "another node takes over")
        await _may_go_on(realm, recipe, session, cut_s)
        back_s = time.time()
        if recipe.lost:
            realm.line.cut()
        await realm.restore()
        story = await _ended(realm, session)
    finally:
        realm.line.watch = _ignore
        await realm.restore()
        running.cancel()
    marks = {"the line is cut": cut_s, "the line is back": back_s}
    found = [fault.text for fault in (*faults(story), *late_acts(story))]
    return Outcome(found, timeline(story, since_s=cut_s, marks=marks))


def _watch(
    realm: CutRealm, recipe: Recipe, session: str, cut: asyncio.Future[float]
) -> Callable[[Way, bytes], None]:
    """Begins the cut with the last of the recipe's messages; the first one names the session."""
    loop = asyncio.get_running_loop()
    first, *later = recipe.message
    seen = False

    def stop() -> None:
        if recipe.cut == "both":
            realm.line.hold(UP, DOWN)
            return
        if recipe.cut == "node":
            realm.pause()
        else:
            realm.line.hold(DOWN)
        loop.call_later(0.1, realm.line.hold, UP)

    def watch(way: Way, message: bytes) -> None:
        nonlocal seen
        if way != UP or cut.done():
            return
        if not seen:
            seen = first in message and session.encode() in message
            matches = seen and not later
        else:
            matches = all(part in message for part in later)
        if matches:
            cut.set_result(time.time())
            if recipe.after_s:
                loop.call_later(recipe.after_s, stop)
            else:
                stop()

    return watch


def _ignore(_way: Way, _message: bytes) -> None:
    """No recipe is at work."""


async def _may_go_on(realm: CutRealm, recipe: Recipe, session: str, cut_s: float) -> None:
    """Wait until the line is to come back; while it is cut, the far node's calls have time left,
    unless the recipe wants the retry done in any case."""
    if recipe.back == "claimed":
        await asyncio.sleep(0.25)
        return

    def retried() -> bool:
        return bool(realm.record.story(session).of("tool.completed"))

    left_s = cut_s + realm.tool_time_s - 0.3 - time.time()
    patience_s = realm.claim_s + PATIENCE_S if recipe.back == "retried" else max(0.0, left_s)
    with suppress(AssertionError):
        await until(retried, "the retry is done", patience_s)


async def _ended(realm: CutRealm, session: str) -> SessionRecord:
    """The story when all of it is over, or when it should have been."""
    back_s = time.time()
    while not (story := realm.record.story(session)).is_over():
        if time.time() > max(back_s, story.may_act_until_s()) + PATIENCE_S:
            return story
        await asyncio.sleep(0.05)
    first = story.of("tool.intent_recorded")[:1]
    left_s = [seen.fact["deadline_at_ms"] / 1_000 - time.time() for seen in first]
    await asyncio.sleep(LOOKS_ON_S + max([0.0, *left_s]))
    return realm.record.story(session)


# --- the long form --------------------------------------------------------------------------------


async def campaign(names: list[str], times: int, claim_s: int) -> bool:
    """Each recipe so many times on a pair of nodes of its own; prints every story."""
    clean = True
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(Path(folder) / "s", admin=True) as server,
    ):
        for name in names:
            recipe = RECIPES[name]
            print(f"== {name}: {recipe.rule}")
            async with CutRealm(
                server, Path(folder), name, claim_s=claim_s, worker=recipe.worker
            ) as realm:
                for number in range(1, times + 1):
                    outcome = await cook(realm, recipe)
                    clean &= not outcome.faults
                    print(f"-- {name} {number}: {'; '.join(outcome.faults) or 'as it should be'}")
                    print("\n".join(outcome.lines), flush=True)
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cut_off")
    parser.add_argument("recipe", choices=["all", *RECIPES])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--claim-s", type=int, default=6)
    args = parser.parse_args()
    names = list(RECIPES) if args.recipe == "all" else [args.recipe]
    clean = asyncio.run(campaign(names, args.times, args.claim_s))
    print("everything as it should be" if clean else "NOT CLEAN")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
