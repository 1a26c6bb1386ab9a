"""Kill the node at every place while a model drives runs, and compare with what was asked and done.

Goal: every run comes to the end it would have come to; every question that left had its fact
before, and each fact has one end; what must not happen twice happened at most once. Method: a
counter process for the questions, the tools' own ledger, a successor for the node, and an operator
who resolves calls of unknown outcome.

    python -m tests.agents.model_kills [times each [openai | anthropic]]
                                       [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import nats.errors

from rookery.actors.kernel.executors.failpoints import MODEL_FAILPOINTS
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.agents.provider_server import PASSING, ProviderServer
from tests.agents.question_counter import QuestionCounter
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.chaos.run_kills import operate
from tests.nodes import NodeProcess, NotReady, has_died, node_on, replace_node
from tests.stock_client import Stock, stock

__all__ = ["AgentRecord", "faults", "journal_bytes", "kill_at", "messages_of", "turn_facts"]

PROVIDERS = "rookery.actors.execution.agents.provider_model"

PROMPTS = 3
RESULT = "paid 14"
SCRIPTED = """
[models]
default = "counted"
[models.counted]
provider = "scripted"
script = "tests.agents.counted_script:answer"
"""
PASSES = {
    "pulled": 3,
    "decided": 50,
    "effect_started": 20,
    "facts_held": 5,
    **dict.fromkeys(("append_sent", "appended", "acked", "evolved", "replied"), 18),
    **dict.fromkeys(("call_ended", "outcome_passed", *MODEL_FAILPOINTS), 9),
}
"""How often the runs pass each failpoint at least, however their commits meet."""
FAULT_PLACES = ("", "model_request_recorded@2", "evolved@9", "effect_started@6")
"""Where a node dies whose provider has a fault."""

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
                killed = bool(failpoint) and await has_died(mortal)
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
        for stored in await messages_of(server, realm)
        if stored.entity.family == "turn"
        for fact in msgspec.json.decode(stored.body)
    ]


async def journal_bytes(server: EmbeddedServer, realm: str) -> bytes:
    """All bodies of a realm's journal."""
    return b"".join([stored.body for stored in await messages_of(server, realm)])


async def messages_of(server: EmbeddedServer, realm: str) -> list[StoredMessage]:
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


def cells(times: int, provider: str) -> dict[str, tuple[str, str]]:
    """The failpoint and the fault of each cell, by its name; a provider's faults are mended by a
    retry, also where the node dies in it."""
    found = [("", ""), *((place, "") for place in places(PASSES, times))]
    if provider:
        found += [(place, fault) for fault in PASSING for place in FAULT_PLACES]
    return {f"{failpoint} {fault}".strip(): (failpoint, fault) for failpoint, fault in found}


async def campaign(asked: Campaign) -> None:
    """Every failpoint so many times, and every fault of a provider."""
    provider = asked.options.provider or ""
    named = cells(asked.options.times, provider)
    with EmbeddedServer(asked.folder / "store", admin=True) as server:
        calm = await kill_at(server, asked.folder, "", provider)

        async def verdict(cell: str, folder: Path) -> Verdict:
            failpoint, fault = named[cell]
            story = await kill_at(server, folder, failpoint, provider, fault)
            wrong = faults(story)
            if not fault and story.bodies != calm.bodies:
                wrong.append("other bodies were sent")
            lost = sum(fact["type"] == "model.lost.v1" for fact in story.facts)
            counts = f"{len(story.questions)} asked, {lost} lost"
            return Verdict(wrong, counts, story.killed or not failpoint)

        await asked.judge(named, verdict)


def main() -> int:
    parser = options("tests.agents.model_kills", times=5)
    parser.add_argument("provider", nargs="?", choices=["openai", "anthropic"])
    return run_campaign(parser, campaign)


if __name__ == "__main__":
    sys.exit(main())
