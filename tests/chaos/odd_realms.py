"""Realms in which something is not as a node expects it: names, clocks, the journal itself.

Goal: no call is executed twice, every run ends, and every client is answered; with another journal,
of the runs that began in it. Method: sessions of calls on two nodes, something odd, more sessions.

    python -m tests.chaos.odd_realms SCENARIO|all [--times N] [--claim-s 6]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import cycle
from pathlib import Path
from typing import Any

from rookery.bus.server.server import EmbeddedServer
from tests.bus.proxy import DOWN, UP
from tests.chaos.cut_judge import faults, timeline
from tests.chaos.cut_people import run_by_inbox, run_by_request
from tests.chaos.cut_realm import FAR, CutRealm
from tests.nodes import NotReady
from tests.stock_client import Fields

__all__ = ["SCENARIOS"]

RUNS = 12
PROGRAM = "s = 0\nfor n in range(6):\n    s += charge(n)\ns"
BODY: Fields = {"code": PROGRAM, "timeout_ms": 60_000}
TOOL_S = 0.2
PATIENCE_S = 90.0


async def one_name(realm: CutRealm) -> list[str]:
    """A second process comes with the name of a node that runs, and is gone a while later."""
    running = asyncio.create_task(_faults_of_runs(realm, realm.new_sessions(RUNS)))
    await asyncio.sleep(0.5)
    double = realm.another(FAR)
    try:
        await asyncio.to_thread(double.start)
        print("   the second node of the name serves")
    except NotReady as refused:
        print(f"   the second node of the name was refused: {refused.args[0]}")
    await asyncio.sleep(2 * realm.claim_s)
    double.close()
    return [*await running, *await _faults_of_runs(realm, realm.new_sessions(RUNS))]


async def another_journal(realm: CutRealm) -> list[str]:
    """The journal is deleted and made anew with the same settings, under runs that go on. Those are
    lost with it; what begins in the new one is held to the rules, in sessions that the nodes know
    from before as in new ones."""
    known = realm.new_sessions(RUNS)
    before = await _faults_of_runs(realm, known)
    going_on = [
        asyncio.create_task(run_by_inbox(realm.client, realm.record, session, BODY))
        for session in realm.new_sessions(RUNS)
    ]
    await asyncio.sleep(0.5)
    name = f"ROOKERY_{realm.client.realm}_JOURNAL"
    settings = await _api(realm, f"STREAM.INFO.{name}", {})
    await _api(realm, f"STREAM.DELETE.{name}", {})
    await _api(realm, f"STREAM.CREATE.{name}", settings["config"])
    await _end(going_on)
    await realm.record.follow_another_journal(realm.client)
    new, again = await asyncio.gather(
        _faults_of_runs(realm, realm.new_sessions(RUNS)),
        _faults_of_runs(realm, known, id_="again"),
    )
    return [*before, *new, *(f"known before: {text}" for text in again)]


async def clock_jumps(realm: CutRealm) -> list[str]:
    """The wall clock of one node jumps by hours and back again, while calls are at work; and it is
    hours off when another node takes over, which then has to say how long those calls may act."""
    found = []
    for hours in (3, 0, -3, 0):
        running = asyncio.create_task(_faults_of_runs(realm, realm.new_sessions(RUNS)))
        await asyncio.sleep(0.5)
        realm.shift_clock(hours * 3_600)
        found += await running
        if hours and not _wrote_at(realm, hours):
            found.append(f"no fact says that the clock was {hours} hours off")
    for hours in (3, -3):
        realm.shift_clock(hours * 3_600)
        slow = f"slow_charge(1, {realm.tool_time_s + 0.2})"
        wrong = await _taken_over(realm, PROGRAM if hours > 0 else slow)
        found += [f"taken over with the clock {hours} hours off: {text}" for text in wrong]
    return found


async def _taken_over(realm: CutRealm, program: str) -> list[str]:
    """What is wrong with runs whose node is cut off for longer than a claim lives; its clock is
    right again when it is back."""
    await realm.settled()
    body = {"code": program, "limits": {"wall_ms": 60_000}}
    running = asyncio.create_task(_faults_of_runs(realm, realm.sessions(RUNS), body=body))
    await asyncio.sleep(0.5)
    realm.line.hold(UP, DOWN)
    await asyncio.sleep(2 * realm.claim_s)
    realm.shift_clock(0)
    await realm.restore()
    return await running


SCENARIOS: dict[str, Callable[[CutRealm], Awaitable[list[str]]]] = {
    "one-name": one_name,
    "clock-jumps": clock_jumps,
    "another-journal": another_journal,
}


def _wrote_at(realm: CutRealm, hours: int) -> bool:
    """Whether the far node wrote a fact with its clock so many hours off."""
    return any(
        round((seen.fact["at_ms"] / 1_000 - seen.at_s) / 3_600) == hours
        for facts in realm.record.facts.values()
        for seen in facts
        if seen.node == FAR
    )


async def _api(realm: CutRealm, subject: str, body: object) -> dict[str, Any]:
    reply = await realm.client.nats.request(f"$JS.API.{subject}", json.dumps(body).encode())
    answer: dict[str, Any] = json.loads(reply.data)
    assert "error" not in answer, answer
    return answer


async def _faults_of_runs(
    realm: CutRealm, sessions: list[str], id_: str = "first", body: Fields = BODY
) -> list[str]:
    """Let a program run in each session, and say what is wrong with it."""
    began_s = time.time()
    clients = [
        asyncio.create_task(run(realm.client, realm.record, session, body, id_))
        for session, run in zip(sessions, cycle((run_by_inbox, run_by_request)), strict=False)
    ]
    end_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        await asyncio.sleep(0.25)
        stories = realm.record.stories(sessions)
        if all(story.is_over() for story in stories):
            break
    await _end(clients)
    recoveries = sum(len(story.of("tool.recovery_required")) for story in stories)
    print(f"   {len(stories)} runs, {recoveries} recoveries")
    for story in stories:
        if faults(story):
            print(story.session, *timeline(story, since_s=began_s), sep="\n")
    return [fault.text for story in stories for fault in faults(story)]


async def _end(clients: list[asyncio.Task[None]]) -> None:
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


async def campaign(names: list[str], times: int, claim_s: int) -> bool:
    clean = True
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(Path(folder) / "s", admin=True) as server,
    ):
        for name in names:
            for number in range(1, times + 1):
                realm = CutRealm(
                    server, Path(folder), f"{name}{number}", claim_s=claim_s, tool_s=TOOL_S
                )
                print(f"== {name} {number}", flush=True)
                async with realm:
                    await realm.settled()
                    found = await SCENARIOS[name](realm)
                clean &= not found
                print("\n".join(found) or "   as it should be", flush=True)
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.odd_realms")
    parser.add_argument("scenario", choices=["all", *SCENARIOS])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--claim-s", type=int, default=6)
    args = parser.parse_args()
    names = list(SCENARIOS) if args.scenario == "all" else [args.scenario]
    clean = asyncio.run(campaign(names, args.times, args.claim_s))
    print("everything as it should be" if clean else "NOT CLEAN")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
