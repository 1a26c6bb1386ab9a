"""Break one server of a cluster of three under load, and compare the runs with their tools' calls.

Goal: every run ends with its result, every call is made once, and a client waits at most two
seconds longer than a bare publisher. Method: three real servers with TLS, two nodes, clients whose
programs make counted calls, and bare publishers on the same servers. One publishes to a stream of
its own, which the broken server leads as well. Every stream elects its own leader, within 4 to
9 s, or later if the votes split or the machine is busy. So two others publish what is refused, to
the journal and to the claims' bucket: runs wait for the first election, and for the second if it
takes longer than claims live.

    python -m tests.chaos.cluster [times each] [fault ...]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from math import ceil
from pathlib import Path
from typing import Any

import msgspec

from rookery.bus.client import Client
from rookery.bus.jetstream_api import EXPECTED_SEQUENCE, ApiError
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.ports import PARTITIONS
from rookery.bus.roles import Role
from rookery.bus.storage.bucket import Bucket, JetStreamClaims
from rookery.bus.streams import find_node_token
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from tests.bus.cluster import Cluster, Server
from tests.nodes import NodeProcess

__all__ = ["FAULTS", "ClusterLoad", "FaultReport", "break_server", "cluster_load"]

REALM = "clustered"
NODES = 2
SESSIONS = 8
BARE = "BARE"
TOOLS = "tests.chaos.cluster_tools:registry"
HERE = str(Path(__file__).parents[2])
RUN_S = 120.0
SETTLES_S = 1.0
ACTED_S = 1.0
"""Long after a call, which takes no time."""
LIMITS = {"wall_ms": 100_000}
PUBLISH_S = 0.25
MORE_S = 2.0
"""How much longer than an election a client waits at most."""
FAULT_S = 12.0
"""How long a stopped or isolated server is away: longer than an election, and than claims live."""


class FaultReport(msgspec.Struct, frozen=True):
    """One fault; all times are the longest without an end or a reply."""

    fault: str
    runs: int
    pause_s: float
    """The longest a client waited for one run."""
    resolved: int
    """Calls whose node lost its claims, so that an operator resolved them."""
    bare_s: float
    """The longest the publisher to a stream of its own waited for an ack."""
    journal_s: float
    """The longest the journal had no leader."""
    claims_s: float
    """The longest the claims had none."""
    load: float
    """Processes that wanted a processor in the last minute."""

    @property
    def is_late(self) -> bool:
        """Whether a client waited longer than the elections explain."""
        return self.pause_s > max(self.bare_s, self.journal_s, self.claims_s) + MORE_S


class ClusterLoad:
    """Clients at work, and a bare publisher beside them."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        ledger: Path,
        *,
        bare: BarePublisher,
        journal: BarePublisher,
        claims: BarePublisher,
        nodes: int,
    ) -> None:
        self.cluster, self.bare, self.journal, self.claims = cluster, bare, journal, claims
        self.nodes = nodes
        self._client, self._ledger = client, ledger
        self._done: Counter[str] = Counter()
        self.longest_s = 0.0
        """The longest wait for a run since it was set."""
        self.resolved = 0
        """The calls that the operator resolved."""
        self.wrong: list[str] = []
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._work(session_name(n))) for n in range(SESSIONS)]
        self._operator = asyncio.create_task(self._operate())

    async def _work(self, session: str) -> None:
        for number in count(1):
            if self._stopping.is_set():
                return
            code, began_s = f"add({number}) + add({number})", time.monotonic()
            answer = await self._client.run(session, code, timeout_s=RUN_S, limits=LIMITS)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            if answer.result != 2 * number:
                self.wrong.append(f"{session} {number}: {answer}")
            self._done[session] += 1

    @property
    def done(self) -> int:
        """How many runs have ended."""
        return self._done.total()

    async def _operate(self) -> None:
        """Resolve calls without a known outcome, by the lines of the ledger."""
        async for fact in self._client.events("tool"):
            if fact["type"] != "tool.recovery_required.v1":
                continue
            await asyncio.sleep(ACTED_S)
            call = fact["operation_id"]
            acted = [line.split()[1] for line in self._lines() if line.split()[0] == call]
            self.resolved += 1
            outcome: dict[str, Any] = {"completed": int(acted[0])} if acted else {"retry": True}
            with suppress(Refused):  # The node has found it meanwhile.
                await self._client.resolve(fact["session"], fact["run"], call, now=True, **outcome)

    def _lines(self) -> list[str]:
        return self._ledger.read_text(encoding="utf-8").splitlines()

    async def all_sessions_continue(self) -> None:
        """Wait until each session has ended two more runs."""
        wanted = {
            session: self._done[session] + 2 for session in map(session_name, range(SESSIONS))
        }
        while any(self._done[session] < number for session, number in wanted.items()):
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)

    async def ends(self) -> int:
        """End the load; how many runs there were. Each run has made its two calls, once."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)
        self._operator.cancel()
        calls = Counter(line.split()[0] for line in self._lines())
        repeated = {key: times for key, times in calls.items() if times > 1}
        assert not self.wrong, self.wrong[:5]
        assert not repeated, repeated
        assert len(calls) == 2 * self.done, f"{len(calls)} calls of {self.done} runs"
        return self.done


def session_name(number: int) -> str:
    return f"s{number}"


class BarePublisher:
    """Publishes one message again and again, through each server in turn: its longest wait is the
    election."""

    def __init__(self, connections: list[Connection], message: Outgoing) -> None:
        self.longest_s = 0.0
        self._connections, self._message = connections, message
        self._task = asyncio.create_task(self._publish())

    async def _publish(self) -> None:
        replied_s = time.monotonic()
        while True:
            for connection in self._connections:
                with suppress(Failed):
                    await connection.request(self._message, timeout_s=PUBLISH_S)
                    self.longest_s = max(self.longest_s, time.monotonic() - replied_s)
                    replied_s = time.monotonic()
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task


@asynccontextmanager
async def bare_publisher(cluster: Cluster, message: Outgoing) -> AsyncIterator[BarePublisher]:
    async with AsyncExitStack() as opened:
        connections = []
        for server in cluster.servers:
            connection = Connection(f"tls://127.0.0.1:{server.port}", cluster.access, name="bare")
            await connection.open()
            opened.push_async_callback(connection.close)
            connections.append(connection)
        publisher = BarePublisher(connections, message)
        opened.push_async_callback(publisher.close)
        yield publisher


async def stored_message(cluster: Cluster) -> Outgoing:
    """A message of a stream with three copies, which is made for it."""
    config = {"name": BARE, "subjects": ["bare"], "num_replicas": 3, "max_msgs": 1_000}
    await cluster.connection.api(f"STREAM.CREATE.{BARE}", config)
    return Outgoing("bare", b"x")


async def refused_messages(cluster: Cluster) -> list[Outgoing]:
    """Messages that the leaders of the journal and of the claims refuse."""
    subjects = Subjects(REALM)
    await find_node_token(cluster.connection, subjects)
    append = subjects.append_of_node(EntityId("node", "_refused"))
    claim = subjects.bucket_write(subjects.claims_bucket, "_refused")
    headers = [(EXPECTED_SEQUENCE, str(1 << 40))]
    return [Outgoing(subject, b"[]", headers=headers) for subject in (append, claim)]


@asynccontextmanager
async def cluster_load(
    cluster: Cluster, folder: Path, nodes: int = NODES
) -> AsyncIterator[ClusterLoad]:
    """Nodes, clients that run counted calls, and the bare publisher."""
    ledger = folder / "ledger"
    ledger.touch()
    variables = {"LEDGER": str(ledger), "PYTHONPATH": HERE} | cluster.settings
    options = ("--realm", REALM, "--driver", "sandbox", "--tools", TOOLS)
    processes = [NodeProcess(folder, *options, **variables) for _ in range(nodes)]
    async with AsyncExitStack() as opened:
        for process in processes:
            opened.callback(process.close)
        await asyncio.gather(*(asyncio.to_thread(process.start) for process in processes))
        bare, journal, claims = [
            await opened.enter_async_context(bare_publisher(cluster, message))
            for message in (await stored_message(cluster), *await refused_messages(cluster))
        ]
        access = cluster.access_of(Role.OPERATOR)
        client = Client(cluster.url, access, realm=REALM, absence_s_max=RUN_S)
        await opened.enter_async_context(client)
        yield ClusterLoad(
            cluster, client, ledger, bare=bare, journal=journal, claims=claims, nodes=nodes
        )


# --- faults ---------------------------------------------------------------------------------------

Fault = Callable[[Cluster, Server, float], Awaitable[None]]


async def kill(cluster: Cluster, victim: Server, away_s: float) -> None:
    await asyncio.to_thread(victim.kill)
    await asyncio.sleep(away_s)
    victim.start()


async def pause(cluster: Cluster, victim: Server, away_s: float) -> None:
    victim.signal(signal.SIGSTOP)
    await asyncio.sleep(away_s)
    victim.signal(signal.SIGCONT)


async def isolate(cluster: Cluster, victim: Server, away_s: float) -> None:
    victim.isolate()
    await asyncio.sleep(away_s)
    victim.rejoin()


async def restart_all(cluster: Cluster, victim: Server, away_s: float) -> None:
    """One after the other, the leader first."""
    for server in sorted(cluster.servers, key=lambda server: server is not victim):
        await asyncio.to_thread(server.stop)
        server.start()
        await cluster.whole([*Subjects(REALM).streams, BARE])


ISOLATED = "isolated"
"""Needs relays before the servers' ports, which cost processor time; the others need none."""
FAULTS: dict[str, Fault] = {
    "killed": kill,
    "stopped": pause,
    ISOLATED: isolate,
    "restarted": restart_all,
}


async def break_server(load: ClusterLoad, name: str, *, away_s: float = FAULT_S) -> FaultReport:
    """Break the server that leads the journal and the bare publisher's stream."""
    cluster = load.cluster
    await cluster.whole([*Subjects(REALM).streams, BARE])
    victim = await cluster.leader(Subjects(REALM).journal_stream)
    await lead(cluster, victim, BARE)
    await settled(cluster, load.nodes)
    await load.all_sessions_continue()
    before, resolved = load.done, load.resolved
    load.longest_s = load.bare.longest_s = load.journal.longest_s = load.claims.longest_s = 0.0
    await FAULTS[name](cluster, victim, away_s)
    await load.all_sessions_continue()
    return FaultReport(
        fault=name,
        runs=load.done - before,
        resolved=load.resolved - resolved,
        pause_s=round(load.longest_s, 2),
        bare_s=round(load.bare.longest_s, 2),
        journal_s=round(load.journal.longest_s, 2),
        claims_s=round(load.claims.longest_s, 2),
        load=round(os.getloadavg()[0], 1),
    )


async def settled(cluster: Cluster, nodes: int) -> None:
    """Wait until no node holds more than its share of the partitions, and none moves."""
    subjects = Subjects(REALM)
    await find_node_token(cluster.connection, subjects)
    bucket = Bucket(cluster.connection, subjects, subjects.claims_bucket)
    share = ceil(PARTITIONS / nodes)
    before: list[tuple[str, str]] = []
    while True:
        claims = await JetStreamClaims(bucket).list("partition.")
        now = sorted((claim.name, claim.holder) for claim in claims)
        held = Counter(holder for _, holder in now)
        is_shared = len(held) == nodes and max(held.values()) <= share
        if now == before and held.total() == PARTITIONS and is_shared:
            return
        before = now
        await asyncio.sleep(SETTLES_S)


async def lead(cluster: Cluster, server: Server, stream: str) -> None:
    """Make the server the leader of the stream."""
    placement = {"placement": {"preferred": server.name}}
    while await cluster.leader(stream) is not server:
        with suppress(ApiError, Failed):
            await cluster.connection.api(f"STREAM.LEADER.STEPDOWN.{stream}", placement)
        await asyncio.sleep(0.2)


async def _campaign(folder: Path, times: int, names: list[str], *, relayed: bool) -> int:
    """How many pauses were too long."""
    folder.mkdir()
    servers = Cluster(folder / "cluster", REALM, relayed=relayed)
    async with servers as cluster, cluster_load(cluster, folder) as load:
        reports = []
        for name in names:
            for _ in range(times):
                reports.append(report := await break_server(load, name))
                print(msgspec.json.encode(report).decode(), flush=True)
        late = sum(report.is_late for report in reports)
        print(f"{await load.ends()} runs: 0 lost, 0 repeated", flush=True)
        print(f"{late} of {len(reports)} pauses were longer than an election and {MORE_S} s")
        return late


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    names = sys.argv[2:] or list(FAULTS)
    direct = [name for name in names if name != ISOLATED]
    late = 0
    with tempfile.TemporaryDirectory() as folder:
        if direct:
            late += asyncio.run(_campaign(Path(folder, "direct"), times, direct, relayed=False))
        if ISOLATED in names:
            late += asyncio.run(_campaign(Path(folder, ISOLATED), times, [ISOLATED], relayed=True))
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
