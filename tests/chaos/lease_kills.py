"""Kill the owner of a lease at every failpoint, while a hundred calls wait for its credential.

Goal: the authorization server counts one use of each refresh token, or the lease requires a login;
and every call ends. Method: one, two or three nodes that share the partitions, each of which would
die at the failpoint if it owned the lease; one more node that starts once the owner is dead; and a
person who logs in where only that helps.

    python -m tests.chaos.lease_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from rookery.actors.kernel.executors.failpoints import LEASE_FAILPOINTS
from rookery.bus.ports import PARTITIONS
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.cells import Campaign, Verdict, options, run_campaign
from tests.chaos.lease_realm import CALLS, SESSIONS, LeaseRealm, facts_of_lease
from tests.execution.programs import Programs
from tests.leases.token_server import FIRST_TOKEN, TokenServer, token_server
from tests.nodes import NodeProcess
from tests.stock_client import Fields, Stock, stock, until

__all__ = ["LeaseKill", "faults", "kill_owner_at"]

ANSWER_LOST = ("refresh_intended", "provider_answered")
"""Where an owner dies with an answer that a later one cannot have."""
AT_EVERY_OWNER = "waits_ended"
"""Where the next owner passes, too: it repeats what was not recorded."""
COMPLETED, FAILED = "lease.refresh_completed.v1", "lease.refresh_failed_permanent.v1"
REFRESH_ENDS = (COMPLETED, FAILED, "lease.refresh_failed_transient.v1")
SUM = sum(range(CALLS))


class LeaseKill(NamedTuple):
    """What became of the nodes, the refresh token and the calls."""

    failpoint: str
    nodes: int
    died: int
    used: dict[str, int]
    """How often the server got each refresh token."""
    ends: list[Fields]
    """The facts that end refreshes."""
    results: list[object]
    paid: dict[str, int]
    """How often each call was made, over all sessions."""


def kill_owner_at(
    server: EmbeddedServer, folder: Path, tokens: TokenServer, failpoint: str, nodes: int
) -> LeaseKill:
    """The calls on so many nodes, of which the owner of their lease dies at ``failpoint``."""
    realm = LeaseRealm(server, folder, tokens)
    with closing(realm):
        return asyncio.run(_kill_owner(realm, failpoint, nodes))


async def _kill_owner(realm: LeaseRealm, failpoint: str, nodes: int) -> LeaseKill:
    mortals = await asyncio.gather(
        *(asyncio.to_thread(realm.node, ROOKERY_FAILPOINT=failpoint) for _ in range(nodes))
    )
    await asyncio.gather(*(_has_share(node, PARTITIONS // nodes) for node in mortals))
    deaths = (nodes if failpoint == AT_EVERY_OWNER else 1) if failpoint else 0
    async with stock(realm.server, realm.realm, Role.OPERATOR) as client:
        facts = await facts_of_lease(client, realm.lease)
        await realm.seal(1, FIRST_TOKEN, left_s=-5)
        sessions = await realm.begin_calls(client)
        if failpoint:
            await until(lambda: _dead(mortals) >= deaths, "the owner dies")
            await asyncio.to_thread(realm.node)
        if failpoint in ANSWER_LOST:
            await _log_in_again(realm, client, sessions)
        ended = [(await programs.seen("turn.completed"))[0] for programs in sessions]
    return LeaseKill(
        failpoint=failpoint,
        nodes=nodes,
        died=_dead(mortals),
        used=realm.tokens.used,
        ends=[fact for fact in facts if fact["type"] in REFRESH_ENDS],
        results=[fact["result"]["result"] for fact in ended],
        paid=dict(realm.paid),
    )


async def _has_share(node: NodeProcess, partitions: int) -> None:
    await until(lambda: node.served() <= partitions + 1, "the nodes share the partitions")


def _dead(nodes: list[NodeProcess]) -> int:
    return sum(not node.running for node in nodes)


async def _log_in_again(realm: LeaseRealm, client: Stock, sessions: list[Programs]) -> None:
    """The runs are parked for a login; a person logs in, and they continue."""
    for programs in sessions:
        await until(lambda programs=programs: _is_parked(programs), "the run is parked for a login")
    await realm.seal(2, "refresh-of-the-login", left_s=3_600)
    await realm.request(client)


def _is_parked(programs: Programs) -> bool:
    parked = programs.of("turn.parked")
    return any(fact["code"] == "LEASE_REAUTH_REQUIRED" for fact in parked)


def faults(kill: LeaseKill) -> list[str]:
    """What is wrong with a kill."""
    found: list[str] = []
    if bool(kill.died) != bool(kill.failpoint):
        found.append(f"{kill.died} nodes died")
    used = {} if kill.failpoint == "refresh_intended" else {FIRST_TOKEN: 1}
    if kill.used != used:
        found.append(f"refresh tokens were used {kill.used}")
    ends = [(fact["type"], "may be lost" in fact.get("reason", "")) for fact in kill.ends]
    if ends != [(FAILED, True) if kill.failpoint in ANSWER_LOST else (COMPLETED, False)]:
        found.append(f"the refresh ended as {ends}")
    if kill.results != [SUM] * SESSIONS:
        found.append(f"the runs ended with {kill.results}")
    if len(kill.paid) != CALLS or min(kill.paid.values()) < SESSIONS:
        found.append("not every call was made")
    return found


async def campaign(asked: Campaign) -> None:
    """Every failpoint on one, two and three nodes, so many times each."""
    with EmbeddedServer(asked.folder / "store", admin=True) as server:

        async def verdict(cell: str, folder: Path) -> Verdict:
            failpoint, nodes = cell.split(maxsplit=1)[0].replace("calm", ""), int(cell.split()[2])
            with token_server(lifetime_s=3_600) as tokens:
                kill = await asyncio.to_thread(
                    kill_owner_at, server, folder, tokens, failpoint, nodes
                )
            return Verdict(faults(kill), f"{sum(kill.paid.values())} paid")

        cells = [
            f"{failpoint} on {nodes} nodes, {number}"
            for number in range(1, asked.options.times + 1)
            for failpoint in ("calm", *LEASE_FAILPOINTS)
            for nodes in (1, 2, 3)
        ]
        await asked.judge(cells, verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.lease_kills", times=3), campaign))
