"""Kill the node at every place where it could die and compare what is left with an undisturbed run.

Goal: no command is lost or causes anything twice, every answer arrives, and the state of every
session is the one it would have had. Method: a few sessions each live through the same story,
through both doors, while the node is killed at a named point; another takes its place.

    python -m tests.chaos.node_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.chaos.digests import journaled
from tests.chaos.session_scenario import SessionScenario
from tests.nodes import NodeProcess, NotReady, has_died, node_on, replace_node
from tests.stock_client import stock, until

__all__ = ["PASSES", "Cell", "Outcome", "faults", "kill_at", "undisturbed"]

SESSIONS = ("one", "two", "three")
PASSES = {
    "pulled": 50,
    "decided": 70,
    "effect_started": 24,
    **dict.fromkeys(("append_sent", "appended", "acked", "evolved", "replied"), 28),
}
"""How often the stories pass each failpoint at least, however their commits meet."""

_realms = count(1)


class Outcome(NamedTuple):
    """What the sessions came to."""

    states: dict[str, str]
    """Digests of the states folded from the journal."""
    facts: dict[str, bytes]
    answers: dict[str, dict[str, str]]
    doubles: list[str]
    """Commands that caused facts twice."""


class Cell(NamedTuple):
    """One kill."""

    failpoint: str
    back_ms: int
    """From the kill until another node served; 0 if no node was killed."""
    outcome: Outcome


async def undisturbed(server: EmbeddedServer, folder: Path) -> Outcome:
    """The stories as they go when no node dies."""
    realm = f"calm{next(_realms)}"
    with node_on(server, realm, folder):
        return await _tell(server, realm)


async def kill_at(server: EmbeddedServer, folder: Path, failpoint: str) -> Cell:
    """The stories on a node that dies at ``failpoint`` (``name@pass``), and its successor."""
    realm = f"killed{next(_realms)}"
    mortal = node_on(server, realm, folder, ROOKERY_FAILPOINT=failpoint)
    successor = node_on(server, realm, folder)
    with closing(mortal), closing(successor):
        with suppress(NotReady):  # It may come to its point while it starts.
            await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(_replace(mortal, successor))
        outcome = await _tell(server, realm)
        if not await has_died(mortal):
            replacing.cancel()
            return Cell(failpoint, 0, outcome)
        return Cell(failpoint, await replacing, outcome)


async def _replace(mortal: NodeProcess, successor: NodeProcess) -> int:
    await until(lambda: not mortal.running)
    began_s = time.monotonic()
    await replace_node(mortal, successor)
    return round((time.monotonic() - began_s) * 1000)


async def _tell(server: EmbeddedServer, realm: str) -> Outcome:
    async with stock(server, realm, Role.OPERATOR) as client:
        await client.follow()
        stories = [
            SessionScenario(client, session, turned=bool(number % 2))
            for number, session in enumerate(SESSIONS)
        ]
        await asyncio.gather(*(story.play() for story in stories))
    found = await journaled(server, realm)
    return Outcome(
        {session: found.state_digest(session) for session in SESSIONS},
        {session: found.normal(session) for session in SESSIONS},
        {story.session: story.answers for story in stories},
        [f"{session}/{id_}" for session in SESSIONS for id_ in found.doubles(session)],
    )


def faults(cell: Cell, calm: Outcome) -> list[str]:
    """What is wrong with a cell."""
    found = [] if cell.back_ms else ["no node was killed"]
    found += [f"{id_} caused facts twice" for id_ in cell.outcome.doubles]
    for what in ("states", "facts", "answers"):
        ours, theirs = getattr(cell.outcome, what), getattr(calm, what)
        found += [f"{what} of {name} differ" for name in SESSIONS if ours[name] != theirs[name]]
    return found


async def campaign(asked: Campaign) -> None:
    with EmbeddedServer(asked.folder / "store", admin=True) as server:
        calm = await undisturbed(server, asked.folder)

        async def verdict(failpoint: str, folder: Path) -> Verdict:
            cell = await kill_at(server, folder, failpoint)
            return Verdict(faults(cell, calm), f"back after {cell.back_ms} ms")

        await asked.judge(places(PASSES, asked.options.times), verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.node_kills", times=5), campaign))
