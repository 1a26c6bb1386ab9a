"""Many runs, tools that fail now and then, and nodes that are killed, paused and replaced.

Goal: what was admitted has ended, each once; the till did what the journal says it was to do, and
nothing the journal does not know of. Method: sessions of small programs, a tool worker that keeps
its own ledger and outlives the nodes, and an operator who looks into it before he says what became
of a call without a record.

    python -m tests.chaos.effect_audit [runs] [sessions] [kill|leave|pause|part ...]

``part`` kills one of two processes of the node, which brings it back by itself. With it, every node
has two processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Filter
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.digests import journaled
from tests.nodes import ROOKERY, NodeProcess, access_to, clean_environment, node_on
from tests.stock_client import Stock, stock, until

__all__ = ["Accounts", "Disturbance", "faults", "trade"]


class Disturbance(StrEnum):
    """What befalls a node."""

    KILL = "kill"
    LEAVE = "leave"
    PAUSE = "pause"
    PART = "part"


REALM = "till"
PAUSE_S = 9.0
"""Longer than a claim lives."""
PROGRAM = (
    "import asyncio\nsold = till_charge({n})\n"
    "left = await asyncio.gather(till_stock('tea'), till_stock('cake'))\nsold + sum(left)"
)
HERE = str(Path(__file__).parents[2])


class Accounts(NamedTuple):
    """Both sides of the story."""

    statuses: Counter[str]
    """Of the answers the clients got."""
    ends: Counter[str]
    """How often each admitted run ended on record."""
    admitted: int
    intents: Counter[str]
    """By operation."""
    outcomes: Counter[str]
    """How often a call came to something on record, by operation."""
    recoveries: set[str]
    """Operations an operator had to decide."""
    executions: Counter[str]
    """By idempotency key, which is the operation: the worker's own ledger."""
    charges: set[str]
    seconds: float


async def trade(
    folder: Path, *, runs: int, sessions: int, disturbances: Sequence[Disturbance]
) -> Accounts:
    """Let clients run programs while one node takes the place of another."""
    ledger = folder / "ledger"
    ledger.touch()
    began_s = time.monotonic()
    with ExitStack() as open_things:
        server = open_things.enter_context(EmbeddedServer(folder / "store", admin=True))
        open_things.enter_context(_worker(server, folder, ledger))
        more = ("--processes", "2") if Disturbance.PART in disturbances else ()
        nodes = [_node(server, folder, *more)]
        open_things.callback(lambda: [node.close() for node in nodes])
        await asyncio.to_thread(nodes[0].start)
        async with stock(server, REALM, Role.OPERATOR) as client:
            operator = asyncio.create_task(_operate(client, ledger))
            statuses: Counter[str] = Counter()
            disturbing = asyncio.create_task(
                _disturb(
                    server, folder, nodes, statuses, runs=runs, disturbances=disturbances, more=more
                )
            )
            shares = [runs // sessions + (n < runs % sessions) for n in range(sessions)]
            await asyncio.gather(
                *(_shop(client, f"s{n}", share, statuses) for n, share in enumerate(shares))
            )
            await disturbing
            operator.cancel()
            with suppress(asyncio.CancelledError):
                await operator
        return await _accounts(server, ledger, statuses, time.monotonic() - began_s)


async def _shop(client: Stock, session: str, share: int, statuses: Counter[str]) -> None:
    for number in range(share):
        body = {"code": PROGRAM.format(n=number), "timeout_ms": 60_000}
        answer = await client.ask("run", session, body, Nats_Msg_Id=f"{session}-{number}")
        while answer.body.get("status") == "interrupted":  # It waits for the operator.
            await asyncio.sleep(0.2)
            answer = await client.ask("run", session, body, Nats_Msg_Id=f"{session}-{number}")
        statuses[str(answer.body.get("status", answer.code))] += 1


async def _disturb(
    server: EmbeddedServer,
    folder: Path,
    nodes: list[NodeProcess],
    statuses: Counter[str],
    *,
    runs: int,
    disturbances: Sequence[Disturbance],
    more: Sequence[str],
) -> None:
    """At even distances. After a kill the next node takes over at once; who leaves or is paused
    has a second one beside it before."""
    for number, disturbance in enumerate(disturbances, 1):
        share = number * runs // (len(disturbances) + 1)
        await until(lambda share=share: statuses.total() >= share, deadline_s=900)
        disturbed, successor = nodes[-1], _node(server, folder, *more)
        if disturbance is Disturbance.PART:
            await _kill_part(disturbed)
            continue
        if disturbance is Disturbance.KILL:
            await _kill_whole(disturbed)
        nodes.append(successor)
        await asyncio.to_thread(successor.start)
        if disturbance is Disturbance.LEAVE:
            assert await asyncio.to_thread(disturbed.stop) == 0
        elif disturbance is Disturbance.PAUSE:
            disturbed.signal(signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)
            disturbed.signal(signal.SIGCONT)


async def _kill_part(node: NodeProcess) -> None:
    """One of its processes dies, and another one comes for it."""
    before = node.processes
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: len(node.processes) == len(before) and node.processes != before)


async def _kill_whole(node: NodeProcess) -> None:
    """No process of a node outlives it."""
    processes = node.processes
    node.kill()
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))


def _node(server: EmbeddedServer, folder: Path, *more: str) -> NodeProcess:
    return node_on(server, REALM, folder, "--driver", "sandbox", "--workers", "till", *more)


def _worker(server: EmbeddedServer, folder: Path, ledger: Path) -> ExitStack:
    command = [
        ROOKERY,
        "tools",
        "serve",
        "tests.chaos.effect_audit_tools:registry",
        "--surface",
        "till",
    ]
    variables = {"LEDGER": str(ledger), "PYTHONPATH": HERE}
    with (folder / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*command, *access_to(server, REALM)],
            cwd=folder,
            env=clean_environment(folder) | variables,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    stack = ExitStack()

    def stop() -> None:
        worker.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(20)
        worker.kill()
        worker.wait()

    stack.callback(stop)
    return stack


async def _operate(client: Stock, ledger: Path) -> None:
    subject, stream = f"rookery.{REALM}.ev.turn.*", f"ROOKERY_{REALM}_JOURNAL"
    found = await (await client.admin()).subscribe(subject, stream=stream, ordered_consumer=True)
    while True:
        with suppress(TimeoutError):
            message = await found.next_msg(timeout=1.0)
            for fact in json.loads(message.data):
                if fact["type"] == "tool.recovery_required.v1":
                    await _resolve(client, ledger, fact)


async def _resolve(client: Stock, ledger: Path, fact: dict[str, Any]) -> None:
    """The worker has had time to finish; then the ledger is the truth."""
    left_s = fact["may_act_until_ms"] / 1_000 - time.time()
    await asyncio.sleep(max(0.5, left_s))
    operation = fact["operation_id"]
    lines = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    said: dict[str, Any] = {"retry": True}
    for _, key, how in lines:
        if key == operation:
            failed = {"failed": {"code": "OUT_OF_ORDER", "message": "as the ledger says"}}
            said = {"completed": 0} if how == "done" else failed
    body = {"run_id": fact["run"], "operation_id": operation, **said}
    await client.ask("resolve", fact["session"], body, Nats_Msg_Id=f"resolve-{operation}")


async def _accounts(
    server: EmbeddedServer, ledger: Path, statuses: Counter[str], seconds: float
) -> Accounts:
    await journaled(server, REALM)  # Which verifies it.
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    recoveries: set[str] = set()
    admitted = 0
    bus = JetStreamBus(server.url_for(Role.NODE, realm=REALM), realm=REALM)
    await bus.start()
    try:
        async for page in bus.journal.scan(Filter()):
            for fact in (fact for stored in page for fact in json.loads(stored.body)):
                kind = fact["type"]
                admitted += kind == "session.input_accepted.v1"
                if kind in ("turn.completed.v1", "turn.failed.v1", "turn.cancelled.v1"):
                    seen["ends"][fact["run"]] += 1
                elif kind == "tool.intent_recorded.v1":
                    seen["intents"][fact["operation_id"]] += 1
                elif kind in ("tool.completed.v1", "tool.failed.v1"):
                    seen["outcomes"][fact["operation_id"]] += 1
                elif kind == "tool.recovery_required.v1":
                    recoveries.add(fact["operation_id"])
    finally:
        await bus.stop()
    lines = [line.split() for line in ledger.read_text(encoding="utf-8").splitlines()]
    return Accounts(
        statuses=statuses,
        ends=seen["ends"],
        admitted=admitted,
        intents=seen["intents"],
        outcomes=seen["outcomes"],
        recoveries=recoveries,
        executions=Counter(key for _, key, _ in lines),
        charges={key for name, key, _ in lines if name == "charge"},
        seconds=seconds,
    )


def faults(accounts: Accounts, runs: int) -> list[str]:
    """What does not add up."""
    found = []
    if accounts.statuses.total() != runs or accounts.admitted != runs:
        found.append(f"{accounts.admitted} admitted, {accounts.statuses} answered of {runs}")
    found += [f"run {run} ended {n} times" for run, n in accounts.ends.items() if n != 1]
    if len(accounts.ends) != runs:
        found.append(f"{len(accounts.ends)} runs ended")
    found += [f"{op} came to {n} outcomes" for op, n in accounts.outcomes.items() if n != 1]
    found += [f"{key} was executed and never intended" for key in accounts.executions
              if key not in accounts.intents]  # fmt: skip
    found += [
        f"{key} was executed {times} times on {accounts.intents[key]} intents"
        for key, times in accounts.executions.items()
        if times > accounts.intents[key]
    ]
    found += [f"{key} was charged twice" for key in accounts.charges
              if accounts.executions[key] > 1]  # fmt: skip
    unknown = [op for op in accounts.intents if not accounts.outcomes[op]]
    found += [f"{op} was intended and has no outcome" for op in unknown]
    return found


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.effect_audit", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("runs", type=int, nargs="?", default=1_000)
    parser.add_argument("sessions", type=int, nargs="?", default=100)
    parser.add_argument(
        "disturbances",
        nargs="*",
        type=Disturbance,
        default=[Disturbance.KILL] * 3,
        help=f"of the node, in turn: {', '.join(Disturbance)}; default: three kills",
    )
    return parser


def main(runs: int, sessions: int, disturbances: Sequence[Disturbance]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        accounts = asyncio.run(
            trade(Path(folder), runs=runs, sessions=sessions, disturbances=disturbances)
        )
    wrong = faults(accounts, runs)
    retried = sum(times > 1 for times in accounts.intents.values())
    executed, intended = accounts.executions.total(), accounts.intents.total()
    story = ", ".join(disturbances)
    print(f"{runs} runs on {sessions} sessions, {story}, {accounts.seconds:.0f} s")
    print(f"answers: {dict(accounts.statuses)}")
    print(f"{intended} intents, {executed} executions, {len(accounts.recoveries)} recoveries")
    print(f"{retried} calls tried again, each under its own key")
    print("\n".join(wrong) or "everything adds up")
    return 1 if wrong else 0


if __name__ == "__main__":
    asked = options().parse_args()
    sys.exit(main(asked.runs, asked.sessions, asked.disturbances))
