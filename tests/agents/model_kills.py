"""Kill the node at every place while a model drives runs, and compare with what was asked and done.

Goal: every run comes to the end it would have come to; every question that left had its fact
before, and each fact has one end; what must not happen twice happened at most once. Method: a
counter process for the questions, the tools' own ledger, a successor for the node, and an operator
who resolves calls of unknown outcome.

    python -m tests.agents.model_kills [times each [openai | anthropic]]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats.errors

from rookery.actors.kernel.failpoints import FAILPOINTS, MODEL_FAILPOINTS, RUN_FAILPOINTS
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.agents.provider_server import PASSING, ProviderServer
from tests.agents.question_counter import QuestionCounter
from tests.chaos.run_kills import operate
from tests.nodes import NodeProcess, NotReady, node_on, replace_node
from tests.stock_client import Stock, stock

__all__ = ["EVERYWHERE", "AgentRecord", "faults", "journal_bytes", "kill_at", "turn_facts"]

PROVIDERS = "rookery.actors.agents.provider_model"

PROMPTS = 3
RESULT = "paid 14"
SCRIPTED = """
[models]
default = "counted"
[models.counted]
provider = "scripted"
script = "tests.agents.counted_script:answer"
"""
EVERYWHERE = (*FAILPOINTS, *RUN_FAILPOINTS, *MODEL_FAILPOINTS)

_realms = count(1)


class AgentRecord(NamedTuple):
    """What the runs came to, what was asked and done, and what is on record."""

    results: list[Any]
    questions: list[str]
    facts: list[dict[str, Any]]
    done: list[str]
    killed: bool
    bodies: list[Any]
    """What a provider's server was sent, by question, without its repetitions."""
    injected: int | None = None
    """How often the provider's server had its fault, if it was to have one."""


async def kill_at(
    server: EmbeddedServer, folder: Path, failpoint: str, provider: str = "", fault: str = ""
) -> AgentRecord:
    """Prompts to a node that dies at ``failpoint``, if any, and its successor. ``provider``: of the
    model; without one it is scripted. ``fault``: of the server at the first attempt of each
    step."""
    realm, ledger = f"models{next(_realms)}", folder / "ledger"
    ledger.touch()
    with ProviderServer() if provider else QuestionCounter() as counter:
        table = counter.table(provider) if isinstance(counter, ProviderServer) else SCRIPTED
        table += "timeout_s = 3.0\n" if fault == "hang" else ""
        (folder / "rookery.toml").write_text(table, encoding="utf-8")

        def node(**variables: str) -> NodeProcess:
            tools = ("--driver", "sandbox", "--tools", "tests.chaos.ledger_tools:registry")
            where = {
                "LEDGER": str(ledger),
                "COUNTER": str(counter.port),
                "PYTHONPATH": str(Path(__file__).parents[2]),
            }
            made = node_on(server, realm, folder, *tools, **where, **variables)
            return made.with_imported(PROVIDERS) if provider else made

        mortal = node(ROOKERY_FAILPOINT=failpoint) if failpoint else node()
        successor = node()
        with closing(mortal), closing(successor):
            with suppress(NotReady):
                await asyncio.to_thread(mortal.start)
            replacing = asyncio.create_task(replace_node(mortal, successor))
            try:
                async with stock(server, realm, Role.OPERATOR) as client:
                    results = await _results(client, ledger, fault)
                killed = not mortal.running
            finally:
                replacing.cancel()
                with suppress(asyncio.CancelledError):
                    await replacing
        facts, questions = await turn_facts(server, realm), await counter.questions()
        sent = counter.requests() if isinstance(counter, ProviderServer) else []
    bodies = {request["key"]: request["body"] for request in reversed(sent)}
    done = ledger.read_text(encoding="utf-8").splitlines()
    first_bodies = list(reversed(bodies.values()))
    repeated = [request for request in sent if bodies[request["key"]] != request["body"]]
    assert not repeated, "a repeated question has the body of the first"
    injected = sum(request["fault"] == fault for request in sent) if fault else None
    return AgentRecord(results, questions, facts, done, killed, first_bodies, injected)


async def _results(client: Stock, ledger: Path, fault: str) -> list[Any]:
    recovered: list[str] = []
    operator = asyncio.create_task(operate(client, ledger, recovered))
    results: list[Any] = []
    try:
        for number in range(PROMPTS):
            text = f"once: {fault} {number}" if fault else f"prompt {number}"
            body, name = {"prompt": text}, f"prompt-{number}"
            answer = await client.ask("run", "one", body, Nats_Msg_Id=name)
            while answer.body.get("status") == "interrupted":  # It waits for the operator.
                await asyncio.sleep(0.2)
                answer = await client.ask("run", "one", body, Nats_Msg_Id=name)
            results.append(answer.body.get("result") or answer.body)
    finally:
        operator.cancel()
        with suppress(asyncio.CancelledError, nats.errors.Error):
            await operator
    return results


async def turn_facts(server: EmbeddedServer, realm: str) -> list[dict[str, Any]]:
    """The facts of the turns of a realm."""
    return [
        fact
        for stored in await _messages(server, realm)
        if stored.entity.family == "turn"
        for fact in msgspec.json.decode(stored.body)
    ]


async def journal_bytes(server: EmbeddedServer, realm: str) -> bytes:
    """All bodies of a realm's journal."""
    return b"".join([stored.body for stored in await _messages(server, realm)])


async def _messages(server: EmbeddedServer, realm: str) -> list[StoredMessage]:
    bus = JetStreamBus(server.url_for(Role.NODE, realm=realm), realm=realm)
    await bus.start()
    try:
        return [one async for page in bus.journal.scan(Filter()) for one in page]
    finally:
        await bus.stop()


def faults(story: AgentRecord) -> list[str]:
    """What is wrong with a record."""

    def attempts(*kinds: str) -> list[str]:
        tags = [f"model.{kind}.v1" for kind in kinds]
        found = [fact for fact in story.facts if fact["type"] in tags]
        return [f"{fact['run']} {fact['step']} {fact['attempt']}" for fact in found]

    if story.injected == 0:
        return ["the fault was never injected"]
    found = [] if story.results == [RESULT] * PROMPTS else [f"came to {story.results}"]
    requested = attempts("requested")
    for asked, times in Counter(story.questions).items():
        found += [f"asked {times} times: {asked}"] if times > 1 else []
        found += [f"asked without a fact: {asked}"] if asked not in requested else []
    ended = attempts("answered", "failed", "lost")
    if sorted(requested) != sorted(ended):
        found.append(f"{len(requested)} questions on record have {len(ended)} ends")
    unanswered = len(requested) - len(attempts("answered"))
    if unanswered > len(attempts("lost", "failed")):
        found.append(f"{unanswered} questions without an answer")
    heads = {
        (fact["run"], fact["step"], fact["head"])
        for fact in story.facts
        if fact["type"] == "model.requested.v1"
    }
    if len(heads) != 3 * PROMPTS:
        found.append(f"{len(heads)} different questions")
    paid = Counter(line.split()[1] for line in story.done if line.startswith("pay "))
    found += [f"{key} was paid {times} times" for key, times in paid.items() if times > 1]
    return found


def passes(failpoint: str, times: int) -> list[str]:
    """Where to kill so many times; a run passes some places only nine times."""
    return [f"{failpoint}@{1 + 2 * number}" for number in range(times)]


def cells(times: int, provider: str) -> list[tuple[str, str]]:
    """The failpoint and the fault of each cell; a provider's faults are mended by a retry, also
    where the node dies in it."""
    found = [("", ""), *((spec, "") for name in EVERYWHERE for spec in passes(name, times))]
    if provider:
        places = ("", "model_request_recorded@2", "evolved@9", "effect_started@6")
        found += [(place, fault) for fault in PASSING for place in places]
    return found


async def campaign(folder: Path, times: int, provider: str) -> bool:
    """Every failpoint so many times, and every fault of a provider; prints a line a cell."""
    clean, calm = True, None
    with EmbeddedServer(folder / "store", admin=True) as server:
        print(f"{'failpoint':26} {'killed':>6} {'asked':>5} {'lost':>4}  verdict")
        for failpoint, fault in cells(times, provider):
            cell = folder / f"{failpoint or 'calm'} {fault}"
            cell.mkdir()
            story = await kill_at(server, cell, failpoint, provider, fault)
            calm = calm or story
            wrong = faults(story)
            if not fault and story.bodies != calm.bodies:
                wrong.append("other bodies were sent")
            clean &= not wrong
            lost = sum(fact["type"] == "model.lost.v1" for fact in story.facts)
            where = f"{failpoint or 'none'} {fault}"
            row = f"{where:26} {story.killed!s:>6} {len(story.questions):5} {lost:4}"
            print(f"{row}  {'; '.join(wrong) or 'as it should be'}", flush=True)
    return clean


def main() -> int:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    provider = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as folder:
        clean = asyncio.run(campaign(Path(folder), times, provider))
    print("every run ended as it should" if clean else "NOT CLEAN")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
