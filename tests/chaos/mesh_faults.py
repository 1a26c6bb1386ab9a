"""Two linked servers, three nodes and many peers, while the link misbehaves and all nodes die once.

Goal: every request has one end on both sides, every request that was not declined had one run of
its handler, no response was applied twice, and what a peer sent to another one arrived in order.
Method: the link runs through a proxy that loses, repeats, reorders and delays messages and is cut;
handlers leave a line in a file; afterwards the journals of both sides and the file are compared.

    python -m tests.chaos.mesh_faults [requests]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.schemas.errors import Failed
from rookery.schemas.peers.items import IntentTerms, Responder
from tests.bus.cluster import free_ports
from tests.chaos.leaf_faults import FAULTS, BadLink
from tests.nodes import NodeProcess
from tests.peers.linked_sites import linked_servers, links_of, pair_sites
from tests.peers.peer_realms import PeerRealm

__all__ = ["LONG", "SHORT", "MeshPlan", "MeshRecord", "carry_out", "faults_of"]

SITES: Final = ("west", "east")
RATES: Final = {"lost": 0.02, "repeated": 0.03, "reordered": 0.05, "delayed": 0.05}
DECLINED_OF: Final = 20
"""One request in so many has an intent that is not served."""
WITHIN_OF: Final = 5
"""One in so many stays within its site."""
IN_FLIGHT_MAX: Final = 8
"""Requests of one peer without an end."""
WALL_MS: Final = 300_000
"""No handler fails because the machine is slow, or its node was killed."""
_ENDS: Final = ("response_ended", "request_timed_out", "request_send_failed")
_REPLIES: Final = ("declined", "response_replied")


class MeshPlan(NamedTuple):
    """How much happens."""

    requests: int
    peers: int
    cuts_s: Sequence[float]
    nodes: Sequence[str]
    """The site of each node."""
    kills: int
    """So many of the nodes are killed, once each."""
    deadline_s: float
    seed: int = 1


SHORT: Final = MeshPlan(requests=120, peers=6, cuts_s=(0.5,), nodes=SITES, kills=0, deadline_s=240)
LONG: Final = MeshPlan(
    requests=10_000,
    peers=30,
    cuts_s=(0.1, 0.3, 1, 2, 20, 0.5, 5, 0.2, 10, 3),
    nodes=("west", "east", "east"),
    kills=3,
    deadline_s=3_600,
)


class Sending(NamedTuple):
    """One request of the plan."""

    number: int
    sender: str
    receiver: str
    """As an address."""
    intent: str


class MeshRecord(NamedTuple):
    """What is on record on both sides, and what handlers did."""

    plan: MeshPlan
    sent: Mapping[str, Sending]
    """By the id of the request."""
    facts: Sequence[Mapping[str, Any]]
    """Of peers, of both sites, in the order of their journals."""
    handled: Sequence[tuple[str, int]]
    """The key and the number of each line that a handler left."""
    counts: Counter[str]
    """Of messages on the link, and of its faults."""
    killed: int
    errors: Sequence[str]
    """What nodes logged as errors of their own."""


# --- the judgement --------------------------------------------------------------------------------


def faults_of(record: MeshRecord) -> list[str]:
    """What is wrong; empty if nothing is."""
    return [
        *_wrong_ends(record),
        *_wrong_runs(record),
        *_wrong_orders(record),
        *_not_injected(record),
        *sorted(set(record.errors)),
    ]


def _wrong_ends(record: MeshRecord) -> list[str]:
    ends, replies = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    found = []
    for fact in record.facts:
        kind = fact["type"].split(".")[1]
        if kind in _ENDS:
            ends[fact["corr_id"]].append(kind)
            error = fact.get("response", {}).get("error")
            if error is not None and record.sent[fact["corr_id"]].intent != "pay":
                found.append(f"request {record.sent[fact['corr_id']].number} failed: {error}")
        elif kind in _REPLIES:
            replies[fact["corr_id"]].append(kind)
        elif kind == "response_unmatched":
            found.append(f"a response to {fact['in_reply_to']} is {fact['why']}")
    for corr_id, sending in record.sent.items():
        if ends[corr_id] != ["response_ended"]:
            found.append(f"request {sending.number} ended {ends[corr_id]}")
        wanted = "declined" if sending.intent == "pay" else "response_replied"
        if replies[corr_id] != [wanted]:
            found.append(f"request {sending.number} was answered {replies[corr_id]}")
    if len(record.sent) != record.plan.requests:
        found.append(f"{len(record.sent)} requests were sent")
    return found


def _wrong_runs(record: MeshRecord) -> list[str]:
    """A line that is left again under its key is the same call of the same run."""
    runs = Counter(number for _, number in set(record.handled))
    wanted = Counter(one.number for one in record.sent.values() if one.intent != "pay")
    return [f"request {number} had {runs[number]} runs" for number in runs - wanted] + [
        f"request {number} had no run" for number in wanted - runs
    ]


def _wrong_orders(record: MeshRecord) -> list[str]:
    """A peer's requests are admitted, and handled, in the order in which they were sent."""
    of_number = {sending.number: sending for sending in record.sent.values()}
    admitted = [
        record.sent[fact["corr_id"]].number
        for fact in record.facts
        if fact["type"].split(".")[1] == "request_received" and fact["corr_id"] in record.sent
    ]
    handled = list(dict.fromkeys(number for _, number in record.handled))
    found = []
    for name, numbers in (("admitted", admitted), ("handled", handled)):
        last: dict[tuple[str, str], int] = {}
        for number in numbers:
            sending = of_number[number]
            pair = sending.sender, sending.receiver
            if last.get(pair, -1) >= number:
                found.append(f"request {number} was {name} after {last[pair]}")
            last[pair] = number
    return found


def _not_injected(record: MeshRecord) -> list[str]:
    kinds = [*FAULTS, *(["cut"] if record.plan.cuts_s else [])]
    found = [f"nothing was {kind}" for kind in kinds if not record.counts[kind]]
    if record.killed != record.plan.kills:
        found.append(f"{record.killed} nodes were killed")
    return found


# --- the campaign ---------------------------------------------------------------------------------


class _Mesh(NamedTuple):
    link: BadLink
    realms: Mapping[str, PeerRealm]
    nodes: list[NodeProcess]
    clients: Mapping[str, Client]
    ledger: Path


async def carry_out(folder: Path, plan: MeshPlan) -> MeshRecord:
    """Send all requests while the faults happen, and wait for their ends."""
    async with _running(folder, plan) as mesh, asyncio.timeout(plan.deadline_s):
        await _serve(mesh, plan)
        mesh.link.rates = RATES
        sent: dict[str, Sending] = {}
        faults = asyncio.create_task(_break(mesh, plan, sent))
        try:
            await asyncio.gather(*(_send(mesh, one, sent) for one in _planned(plan)))
            killed = await faults
        finally:
            faults.cancel()
        mesh.link.rates = {}
        facts = [fact for site in SITES for fact in await _facts(mesh.clients[site])]
        lines = [line.split() for line in mesh.ledger.read_text().splitlines()]
        handled = [(key, int(number)) for _, key, number in lines]
        errors = [line for log in folder.glob("of-*/node-*.log") for line in _errors_in(log)]
        return MeshRecord(plan, sent, facts, handled, mesh.link.counts, killed, errors)


@asynccontextmanager
async def _running(folder: Path, plan: MeshPlan) -> AsyncIterator[_Mesh]:
    port, ledger = free_ports(1)[0], folder / "ledger"
    ledger.touch()
    link = BadLink(port, Random(plan.seed))
    async with AsyncExitStack() as opened:
        await link.open()
        opened.push_async_callback(link.close)
        running = linked_servers(folder, links_of("west", ("east",), port), through=link.port)
        servers = await asyncio.to_thread(opened.enter_context, running)
        realms = {
            site: PeerRealm(servers[site], "default", folder / f"of-{site}") for site in SITES
        }
        nodes = [_node(realms[site], ledger) for site in plan.nodes]
        opened.callback(lambda: [node.close() for node in nodes])
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in nodes))
        await asyncio.to_thread(pair_sites, realms)
        clients = {site: realm.client() for site, realm in realms.items()}
        for client in clients.values():
            await opened.enter_async_context(client)
        yield _Mesh(link, realms, nodes, clients, ledger)


def _node(realm: PeerRealm, ledger: Path) -> NodeProcess:
    where = {"LEDGER": str(ledger), "PYTHONPATH": str(Path(__file__).parents[2])}
    return realm.node("--tools", "tests.chaos.ledger_tools:registry", **where)


def _peers(plan: MeshPlan, site: str) -> list[str]:
    return [f"{site}-{number}" for number in range(plan.peers // len(SITES))]


async def _serve(mesh: _Mesh, plan: MeshPlan) -> None:
    """Open all sessions, and let each handle its requests."""
    responder = Responder(
        code="handle(item['params'])", intents={"review": IntentTerms()}, wall_ms=WALL_MS
    )
    for site, client in mesh.clients.items():
        for peer in _peers(plan, site):
            await client.run(peer, "1")
            await client.serve_peers(peer, responder)


def _planned(plan: MeshPlan) -> list[list[Sending]]:
    """What each peer sends, in its order."""
    random, found = Random(plan.seed), defaultdict[str, list[Sending]](list)
    peers = [peer for site in SITES for peer in _peers(plan, site)]
    for number in range(plan.requests):
        sender = peers[number % len(peers)]
        site = sender.partition("-")[0]
        other = site if random.randrange(WITHIN_OF) == 0 else SITES[1 - SITES.index(site)]
        name = random.choice([one for one in _peers(plan, other) if one != sender])
        receiver = name if other == site else f"{name}@{other}"
        intent = "pay" if number % DECLINED_OF == 7 else "review"
        found[sender].append(Sending(number, sender, receiver, intent))
    return list(found.values())


async def _send(mesh: _Mesh, sendings: Sequence[Sending], sent: dict[str, Sending]) -> None:
    """A peer's requests in their order, some of which may be open at once; returns at their end."""
    places, session = asyncio.Semaphore(IN_FLIGHT_MAX), sendings[0].sender
    client = mesh.clients[session.partition("-")[0]]
    following = asyncio.create_task(_release_at_ends(client, session, len(sendings), places))
    for sending in sendings:
        await places.acquire()
        receipt = await _patiently(client, sending)
        sent[receipt.id] = sending
    await following


async def _patiently(client: Client, sending: Sending) -> Any:
    while True:
        try:
            return await client.send_request(
                sending.sender,
                sending.receiver,
                sending.intent,
                sending.number,
                message_id=f"request-{sending.number}",
            )
        except Failed:
            await asyncio.sleep(0.1)


async def _release_at_ends(
    client: Client, session: str, number: int, places: asyncio.Semaphore
) -> None:
    async with aclosing(client.events("peer", session)) as found:
        async for fact in found:
            if fact["type"].split(".")[1] in _ENDS:
                places.release()
                number -= 1
                if not number:
                    return


async def _break(mesh: _Mesh, plan: MeshPlan, sent: Mapping[str, Sending]) -> int:
    """Cut the link and kill the nodes, at even distances in the course of the requests."""
    cuts: list[float | None] = list(plan.cuts_s)
    for number in range(plan.kills):
        cuts.insert((number + 1) * len(cuts) // (plan.kills + 1), None)
    killed = 0
    for step, seconds in enumerate(cuts, 1):
        while len(sent) < plan.requests * step // (len(cuts) + 1):
            await asyncio.sleep(0.02)
        if seconds is not None:
            await mesh.link.cut(seconds)
            continue
        mortal, site = mesh.nodes[killed], plan.nodes[killed]
        mesh.nodes[killed] = successor = _node(mesh.realms[site], mesh.ledger)
        killed += 1
        await asyncio.to_thread(mortal.kill)
        await asyncio.to_thread(successor.start)
    return killed


def _errors_in(log: Path) -> list[str]:
    """Also those of nodes that were killed."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
    found = [json.loads(line) for line in lines]
    return [f"{one['event']}: {one.get('error')}" for one in found if one["level"] == "error"]


async def _facts(client: Client) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    async for page in client.journal.scan(Filter("peer")):
        for stored in page:
            found += msgspec.json.decode(stored.body)
    return found


def main(requests: int) -> int:
    plan = LONG._replace(requests=requests)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        record = asyncio.run(carry_out(Path(folder), plan))
    found = faults_of(record)
    print(
        f"{len(record.sent)} requests in {time.monotonic() - began_s:.0f} s, {record.killed} kills"
    )
    print(", ".join(f"{kind} {count}" for kind, count in sorted(record.counts.items())))
    print("\n".join(found) or "every request has one end, and no response was applied twice")
    return 1 if found else 0


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.mesh_faults", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("requests", type=int, nargs="?", default=LONG.requests)
    return parser


if __name__ == "__main__":
    sys.exit(main(options().parse_args().requests))
