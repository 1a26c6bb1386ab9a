"""Kill two nodes of a realm at every place while runs call agents; each is replaced by another one.

The sessions of parents and of children are spread over both nodes, so that each death hits parents
whose children are elsewhere, and children whose parents are. Goal: every parent comes to its
result; each call has one child, which runs once; nothing is paid twice; every question has its
fact; and once a parent is cancelled no run below it is left.

    python -m tests.chaos.child_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from rookery.actors.kernel.executors.failpoints import CHILD_FAILPOINTS, MODEL_FAILPOINTS
from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.commands import Cancel
from rookery.schemas.errors import CodedError
from tests.agents.child_agents import CONFIG
from tests.agents.model_kills import messages_of
from tests.agents.question_counter import QuestionCounter
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.chaos.run_kills import operate
from tests.nodes import NodeProcess, NotReady, has_died, node_on, replace_node
from tests.stock_client import stock

__all__ = ["PARENTS", "ChildRecord", "child_node", "faults", "kill_at"]

T = TypeVar("T")

PARENTS = 3
RESULT = '"tea for 6" and "milk for 8"'
TREE = ["leader", "sleeper", "sleeper"]
"""The agents below the run that is cancelled."""
PATIENCE_S = 120.0
PASSES = {
    "pulled": 2,
    "decided": 24,
    "effect_started": 10,
    **dict.fromkeys(("append_sent", "appended", "acked", "evolved"), 14),
    **dict.fromkeys(CHILD_FAILPOINTS, 3),
    "child_cancelling": 1,
    **dict.fromkeys(MODEL_FAILPOINTS, 10),
    "call_ended": 4,
}
"""How often one of the two nodes passes each failpoint at least, whichever sessions it has."""

_realms = count(1)


class ChildRecord(NamedTuple):
    """What the parents came to, what was asked and paid, and what is on record."""

    results: list[Any]
    left: list[str]
    """Runs of the cancelled tree that have not ended as cancelled."""
    questions: list[str]
    paid: list[str]
    facts: list[dict[str, Any]]
    killed: bool


def child_node(server: EmbeddedServer, realm: str, folder: Path, **variables: str) -> NodeProcess:
    """A node with the agents of the tests."""
    (folder / "rookery.toml").write_text(CONFIG, encoding="utf-8")
    tools = ("--driver", "sandbox", "--tools", "tests.agents.child_agents:registry")
    where = {"PYTHONPATH": str(Path(__file__).parents[2]), "LEDGER": str(folder / "ledger")}
    return node_on(server, realm, folder, *tools, **{**where, **variables})


async def kill_at(server: EmbeddedServer, folder: Path, failpoint: str) -> ChildRecord:
    """Parents on two nodes that die at ``failpoint``, if any; at least one of them gets there."""
    realm = f"children{next(_realms)}"
    ledger = folder / "ledger"
    ledger.touch()
    with QuestionCounter() as counter:
        where = {"COUNTER": str(counter.port)}
        dies = {"ROOKERY_FAILPOINT": failpoint} if failpoint else {}
        mortals = [child_node(server, realm, folder, **where, **dies) for _ in range(2)]
        successors = [child_node(server, realm, folder, **where) for _ in mortals]
        with ExitStack() as nodes:
            for node in (*mortals, *successors):
                nodes.enter_context(closing(node))
            await asyncio.gather(*map(_start, mortals))
            pairs = zip(mortals, successors, strict=True)
            replacing = [asyncio.create_task(replace_node(*pair)) for pair in pairs]
            try:
                results, left = await _story(server, realm, ledger)
                killed = bool(failpoint) and await _one_has_died(mortals)
            finally:
                for task in replacing:
                    task.cancel()
                await asyncio.gather(*replacing, return_exceptions=True)
        questions = await counter.questions()
    facts = await _facts(server, realm)
    paid = [line for line in ledger.read_text(encoding="utf-8").splitlines() if "pay " in line]
    return ChildRecord(results, left, questions, paid, facts, killed)


async def _start(node: NodeProcess) -> None:
    with suppress(NotReady):
        await asyncio.to_thread(node.start)


async def _one_has_died(nodes: list[NodeProcess]) -> bool:
    found = [asyncio.create_task(has_died(node)) for node in nodes]
    for died in asyncio.as_completed(found):
        if await died:
            for task in found:
                task.cancel()
            return True
    return False


async def _story(server: EmbeddedServer, realm: str, ledger: Path) -> tuple[list[Any], list[str]]:
    """The results of the parents, and what is left below one that is cancelled."""
    recovered: list[str] = []
    async with stock(server, realm, Role.OPERATOR) as stocked:
        operator = asyncio.create_task(operate(stocked, ledger, recovered))
        try:
            async with Client(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client:
                parents = [_result(client, number) for number in range(PARENTS)]
                *results, left = await asyncio.gather(*parents, _cancelled(client))
                return results, left
        finally:
            operator.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await operator


async def _result(client: Client, number: int) -> Any:
    body = {"prompt": "buy"}
    handle = await client.begin(f"parent{number}", body, message_id=f"buy-{number}")
    answer = await handle.result()
    return answer.result if answer.error is None else answer.error.code


async def _cancelled(client: Client) -> list[str]:
    """Cancel a run once all agents below it sleep; which of its runs have not been cancelled."""
    handle = await client.submit("waiter", {"prompt": "wait"}, message_id="wait")
    run_id = await patiently(handle.accepted)
    await _until(lambda: _sleepers(client), 2)
    command = Cancel(run_id=run_id, now=True)
    await patiently(lambda: client.ask("cancel", "waiter", command))
    await _until(lambda: _open(client, run_id), 0)
    tree = await _tree(client, run_id)
    if sorted(run["agent"] for run in tree[1:]) != TREE:
        return [f"{run['agent']} is below it" for run in tree[1:]]
    return [run["session_id"] for run in tree if run["status"] != "cancelled"]


async def _sleepers(client: Client) -> int:
    runs = (await client.ask("runs", "all", {"status": "interrupted"}))["runs"]
    return sum(run.get("agent") == "sleeper" for run in runs)


async def _open(client: Client, run_id: str) -> int:
    return sum(not one.get("ended_at_ms") for one in await _tree(client, run_id))


async def _tree(client: Client, run_id: str) -> list[dict[str, Any]]:
    found = (await client.ask("runs", "all", {"run_id": run_id}))["runs"]
    for one in found:  # It grows while it is read.
        found += (await client.ask("runs", "all", {"parent": one["run_id"]}))["runs"]
    return list(found)


async def _until(count_: Callable[[], Awaitable[int]], wanted: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await patiently(count_) != wanted:
            await asyncio.sleep(0.05)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while no node answers."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except (CodedError, TimeoutError):
                await asyncio.sleep(0.1)


async def _facts(server: EmbeddedServer, realm: str) -> list[dict[str, Any]]:
    found = await messages_of(server, realm)
    return [fact for one in found for fact in msgspec.json.decode(one.body)]


def faults(story: ChildRecord) -> list[str]:
    """What is wrong with a record."""
    found = [] if story.results == [RESULT] * PARENTS else [f"came to {story.results}"]
    found += [f"{session} was left behind" for session in story.left]
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for fact in story.facts:
        by_kind.setdefault(fact["type"], []).append(fact)
    awaited = [f["child"] for f in by_kind.get("tool.awaited.v1", ()) if "child" in f]
    accepted = [
        fact["session"]
        for fact in by_kind["session.input_accepted.v1"]
        if fact["session"].startswith("sub-")
    ]
    if sorted(awaited) != sorted(accepted) or len(set(awaited)) != len(awaited):
        found.append(f"{len(awaited)} calls of agents have {len(accepted)} children")
    starts = Counter(f["session"] for f in by_kind["turn.started.v1"] if f["session"] in accepted)
    found += [f"{session} ran {n} times" for session, n in starts.items() if n > 1]
    paid = Counter(line.split()[1] for line in story.paid)
    found += [f"{key} was paid {n} times" for key, n in paid.items() if n > 1]
    asked = [
        f"{fact['run']} {fact['step']} {fact['attempt']}" for fact in by_kind["model.requested.v1"]
    ]
    found += [f"asked {n} times: {one}" for one, n in Counter(story.questions).items() if n > 1]
    return found + [f"asked without a fact: {one}" for one in story.questions if one not in asked]


async def campaign(asked: Campaign) -> None:
    """Every failpoint so many times."""
    found = ["", *places(PASSES, asked.options.times)]
    with EmbeddedServer(asked.folder / "store", admin=True) as server:

        async def verdict(cell: str, folder: Path) -> Verdict:
            story = await kill_at(server, folder, cell)
            counts = f"{len(story.questions)} asked, {len(story.paid)} paid"
            return Verdict(faults(story), counts, story.killed or not cell)

        await asked.judge(found, verdict)


def main() -> int:
    return run_campaign(options("tests.chaos.child_kills", times=5), campaign)


if __name__ == "__main__":
    sys.exit(main())
