"""Cut a node off again and again, in every way, and judge every session it had.

Goal: whatever the cut, no call is executed beyond what its facts allow, every run ends, and every
client is answered. Method: the cells of ``cut_cells`` in turn; each cut meets some dozen runs in
the middle of their calls. Each finished cut is a line of the results, from which a later sweep goes
on; a sweep can be stopped at any time, and names the cells that are not clean.

    python -m tests.chaos.cuts [--results FILE] [--minutes N] [--times 3] [--claim-s 2]
                               [--runs 24] [--cells WORD ...]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from rookery.bus.server.server import EmbeddedServer
from tests.bus.proxy import DOWN, UP, Way
from tests.chaos.cut_cells import CELLS, Cell, Cut, Results, tree_digest
from tests.chaos.cut_judge import Fault, faults, late_acts, late_facts, timeline
from tests.chaos.cut_people import run_by_inbox, run_by_request
from tests.chaos.cut_realm import CutRealm
from tests.chaos.cut_record import SessionRecord
from tests.stock_client import Fields, until

__all__ = ["Sweep", "cut_once"]

LOOP = "s = 0\nfor n in range({times}):\n    s += {call}\ns"
PROGRAMS = {
    "local": (LOOP.format(times=8, call="charge(n)"),),
    "worker": (LOOP.format(times=8, call="till_charge(n)"),),
    "large": (LOOP.format(times=4, call="charge(n, 'x' * 300_000)"),),
    "waiting": (
        "import asyncio\ns = approved_charge(1)\nawait asyncio.sleep(0.5)\ns + charge(2)",
        "import asyncio\ns = 0\nfor n in range(5):\n"
        "    await asyncio.sleep(0.4)\n    s += charge(n)\ns + approved_charge(1)",
    ),
}
LONG_WALL_MS = 120_000
TOOL_S = 0.2
BEFORE_S = (0.6, 1.2)
"""How long the runs go on before they are cut: at least, and at most."""
TAKEOVER_CLAIMS = 5
"""Within so many lives of a claim another node takes over."""
PATIENCE_S = 45.0
LOOKS_ON_S = 1.0
STORIES_MAX = 4
CUTS_A_REALM = 30
WAYS: dict[str, tuple[Way, ...]] = {
    "hole": (UP, DOWN),
    "reset": (UP, DOWN),
    "up": (UP,),
    "down": (DOWN,),
}
ROOT = Path(__file__).parents[2]


async def cut_once(realm: CutRealm, cell: Cell, tree: str, number: int, runs: int) -> Cut:
    """One cut of a cell, on sessions that the far node holds."""
    await realm.settled()
    sessions = realm.sessions(runs)
    clients = _clients(realm, cell, sessions)
    try:
        shortest_s, longest_s = BEFORE_S
        await asyncio.sleep(shortest_s + (longest_s - shortest_s) * (number * 0.732 % 1.0))
        cut_s = time.time()
        await _cut(realm, cell, cell.seconds(number, realm.claim_s))
        back_s = time.time()
        stories = await _ended(realm, sessions, back_s)
    finally:
        await realm.restore()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return _judged(realm, cell, tree, stories, cut_s, back_s)


def _clients(realm: CutRealm, cell: Cell, sessions: list[str]) -> list[asyncio.Task[None]]:
    """Half of them wait by the inbox, half ask again and again."""
    programs, clients = PROGRAMS[cell.work], []
    for number, session in enumerate(sessions):
        body: Fields = {"code": programs[number // 2 % len(programs)]}
        if cell.limits == "long":
            body["limits"] = {"wall_ms": LONG_WALL_MS}
        run = run_by_inbox if number % 2 else run_by_request
        clients.append(asyncio.create_task(run(realm.client, realm.record, session, body)))
    return clients


async def _cut(realm: CutRealm, cell: Cell, seconds: float) -> None:
    """Returns when the node is no longer cut off."""
    cut_s = time.time()
    if cell.mode == "stop":
        realm.pause()
    else:
        realm.line.hold(*WAYS[cell.mode])
    if cell.moment == "aimed":
        with suppress(AssertionError):
            await until(
                lambda: realm.taken_over(cut_s),
                "another node takes over",
                realm.claim_s * TAKEOVER_CLAIMS,
            )
    await asyncio.sleep(seconds)
    if cell.mode == "reset":
        realm.line.cut()
    await realm.restore()


async def _ended(realm: CutRealm, sessions: list[str], back_s: float) -> list[SessionRecord]:
    """The stories when all of them are over, or when they should have been."""
    while True:
        stories = realm.record.stories(sessions)
        waiting = [story for story in stories if not story.is_over()]
        until_s = max((story.may_act_until_s() for story in waiting), default=0.0)
        if not waiting or time.time() > max(back_s, until_s) + PATIENCE_S:
            break
        await asyncio.sleep(0.25)
    await asyncio.sleep(LOOKS_ON_S)
    return realm.record.stories(sessions)


def _judged(
    realm: CutRealm,
    cell: Cell,
    tree: str,
    stories: list[SessionRecord],
    cut_s: float,
    back_s: float,
) -> Cut:
    broken = {story.session: found for story in stories if (found := faults(story))}
    late = {story.session: found for story in stories if (found := late_acts(story))}
    marks = {"the node is cut off": cut_s, "it is back": back_s}
    moves = sorted(
        round(move.at_s - cut_s, 3)
        for story in stories
        for move in story.moves
        if cut_s < move.at_s < back_s and move.node
    )
    return Cut(
        tree=tree,
        claim_s=realm.claim_s,
        cell=cell.name,
        gone_s=round(back_s - cut_s, 3),
        taken_over_s=(moves[0], moves[-1]) if moves else (),
        runs=len(stories),
        calls=sum(len(story.calls()) for story in stories),
        recoveries=sum(len(story.of("tool.recovery_required")) for story in stories),
        late_facts=sum(len(late_facts(story)) for story in stories),
        late_acts=sum(map(len, late.values())),
        faults=tuple((fault.kind, fault.text) for found in broken.values() for fault in found),
        stories={
            story.session: timeline(story, since_s=cut_s, marks=marks)
            for story in [s for s in stories if s.session in broken | late][:STORIES_MAX]
        },
    )


class Sweep:
    """Cuts cell after cell; a realm serves several cuts, until one leaves it in disorder."""

    def __init__(self, folder: Path, server: EmbeddedServer, claim_s: int, runs: int) -> None:
        self._folder, self._server = folder, server
        self._claim_s, self._runs = claim_s, runs
        self._tree = tree_digest(ROOT)
        self._realm: CutRealm | None = None
        self._open = AsyncExitStack()
        self._nodes = self._cuts = self._realms = 0

    async def go(self, results: Results, cells: list[Cell], times: int, end_s: float) -> None:
        try:
            for cell in results.to_do(cells, times):
                if time.monotonic() > end_s:
                    return
                cut = await self._one(cell, results.number(cell))
                results.add(cut)
                print(_line(cut), flush=True)
        finally:
            await self._close()

    async def _one(self, cell: Cell, number: int) -> Cut:
        try:
            realm = await self._realm_of(cell.nodes)
            return await cut_once(realm, cell, self._tree, number, self._runs)
        except Exception as error:  # Nodes that cannot go on are a result too.
            await self._close()
            broken = Fault("stuck", f"the realm does not go on: {type(error).__name__}: {error}")
            return Cut(
                tree=self._tree,
                claim_s=self._claim_s,
                cell=cell.name,
                gone_s=0.0,
                faults=((broken.kind, broken.text),),
            )

    async def _realm_of(self, nodes: int) -> CutRealm:
        if self._realm is None or self._nodes != nodes or self._cuts >= CUTS_A_REALM:
            await self._close()
            self._realms += 1
            realm = CutRealm(
                self._server,
                self._folder,
                f"cuts{self._realms}",
                claim_s=self._claim_s,
                beside=nodes - 1,
                worker=True,
                tool_s=TOOL_S,
            )
            self._realm = await self._open.enter_async_context(realm)
            self._nodes, self._cuts = nodes, 0
        self._cuts += 1
        return self._realm

    async def _close(self) -> None:
        self._realm = None
        await self._open.aclose()


def _line(cut: Cut) -> str:
    head = f"{cut.cell:40} gone {cut.gone_s:5.2f} s, {cut.runs} runs, {cut.calls} calls,"
    said = f"{cut.recoveries} recoveries, {cut.late_facts} late facts"
    return f"{head} {said}: {'; '.join(sorted(cut.kinds)) or 'clean'}"


async def campaign(args: argparse.Namespace, results: Results, cells: list[Cell]) -> None:
    """Until all is done, the time is over, or a signal stops it."""
    loop, work = asyncio.get_running_loop(), asyncio.current_task()
    assert work is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, work.cancel)
    end_s = time.monotonic() + 60 * args.minutes
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(Path(folder) / "s", admin=True) as server,
    ):
        sweep = Sweep(Path(folder), server, args.claim_s, args.runs)
        with suppress(asyncio.CancelledError):
            await sweep.go(results, cells, args.times, end_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cuts")
    parser.add_argument("--results", type=Path, default=Path("build/cuts.jsonl"))
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--times", type=int, default=3, help="cuts of a cell that is called clean")
    parser.add_argument("--claim-s", type=int, default=2)
    parser.add_argument("--runs", type=int, default=24, help="runs that meet each cut")
    parser.add_argument("--cells", nargs="*", default=[], help="words that name the cells to cut")
    args = parser.parse_args()
    cells = [cell for cell in CELLS if set(args.cells) <= set(cell.name.split())]
    args.results.parent.mkdir(parents=True, exist_ok=True)
    results = Results(args.results, tree_digest(ROOT), args.claim_s)
    asyncio.run(campaign(args, results, cells))
    not_clean = results.not_clean(cells, args.times)
    print(*results.table(), sep="\n")
    print(
        f"{len(cells) - len(not_clean)} of {len(cells)} cells are clean; not clean:"
        * bool(not_clean)
    )
    print("\n".join(not_clean) or "every cell is clean")
    return 1 if not_clean else 0


if __name__ == "__main__":
    sys.exit(main())
