"""Kill the node at every place while a model acts in programs, and compare with what was done.

The programs gather reads, pay, fail to pay and wait for an approver, in both languages; the second
one uses what the first has defined, and so does a program of a client in the end. Goal: every
program comes to what it would have come to, nothing that must not happen twice happens twice, every
question that left had its fact, and no call of ``run_code`` has an intent.

    python -m tests.agents.code_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import nats.errors

from rookery.actors.kernel.executors.failpoints import MODEL_FAILPOINTS
from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.agents.code_node import RESULT, approver, code_node, ledger_lines
from tests.agents.model_kills import turn_facts
from tests.agents.question_counter import QuestionCounter
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.chaos.run_kills import operate
from tests.nodes import NotReady, has_died, replace_node
from tests.stock_client import Stock, stock

__all__ = ["CodeRecord", "faults", "kill_at"]

SESSION = "one"
LAST = {"status": "ok", "result": 26, "stdout": "again\n"}
DONE = {"grant": 1, "look": 3, "pay": 1}
"""How many different calls leave a line."""
PASSES = {
    "pulled": 2,
    "decided": 24,
    "effect_started": 12,
    "facts_held": 2,
    **dict.fromkeys(("append_sent", "appended", "acked", "evolved"), 14),
    "replied": 2,
    **dict.fromkeys(("call_ended", "outcome_passed"), 5),
    **dict.fromkeys(MODEL_FAILPOINTS, 3),
}
"""How often the run passes each failpoint at least."""

_realms = count(1)


class CodeRecord(NamedTuple):
    """What the programs came to, what was asked and done, and what is on record."""

    results: list[Any]
    questions: list[str]
    facts: list[dict[str, Any]]
    done: list[str]
    killed: bool


async def kill_at(
    server: EmbeddedServer, folder: Path, failpoint: str, language: str = "python"
) -> CodeRecord:
    """A prompt to a node that dies at ``failpoint``, if any, and its successor."""
    realm = f"programs{next(_realms)}"
    ledger = folder / "ledger"
    ledger.touch()
    with QuestionCounter() as counter:
        where = {"COUNTER": str(counter.port)}
        dies = {"ROOKERY_FAILPOINT": failpoint} if failpoint else {}
        mortal = code_node(server, folder, realm, **where, **dies)
        successor = code_node(server, folder, realm, **where)
        with closing(mortal), closing(successor):
            with suppress(NotReady):
                await asyncio.to_thread(mortal.start)
            replacing = asyncio.create_task(replace_node(mortal, successor))
            try:
                async with (
                    stock(server, realm, Role.OPERATOR) as client,
                    approver(server, realm, SESSION),
                ):
                    results = await _results(server, realm, client, ledger, language)
                killed = bool(failpoint) and await has_died(mortal)
            finally:
                replacing.cancel()
                with suppress(asyncio.CancelledError):
                    await replacing
        facts, questions = await turn_facts(server, realm), await counter.questions()
    return CodeRecord(results, questions, facts, ledger_lines(folder), killed)


async def _results(
    server: EmbeddedServer, realm: str, stocked: Stock, ledger: Path, language: str
) -> list[Any]:
    recovered: list[str] = []
    operator = asyncio.create_task(operate(stocked, ledger, recovered))
    body = {"prompt": f"go on in {language}", "tool_mode": "code", "language": language}
    url = server.url_for(Role.OPERATOR, realm=realm)
    try:
        async with Client(url, realm=realm) as client:
            handle = await client.begin(SESSION, body, message_id="prompt")
            said = (await handle.result()).result
            after = {"code": "total([1, 2])", "language": language}
            seen = await client.begin(SESSION, after, message_id="after")
            return [json.loads(said), (await seen.result()).result]
    finally:
        operator.cancel()
        with suppress(asyncio.CancelledError, nats.errors.Error):
            await operator


def faults(story: CodeRecord) -> list[str]:
    """What is wrong with a record."""
    found = [] if story.results == [LAST, 3] else [f"came to {story.results}"]
    facts = {kind: [f for f in story.facts if f["type"] == kind] for kind in _KINDS}
    programs = [f for f in facts["tool.requested.v1"] if f["name"] == "run_code"]
    ends = {f["operation_id"]: f.get("value") for f in facts["tool.completed.v1"]}
    values = [ends.get(fact["operation_id"]) for fact in programs]
    if values != [{"status": "ok", "result": RESULT}, LAST]:
        found.append(f"programs came to {values}")
    asked = [f"{f['run']} {f['step']} {f['attempt']}" for f in facts["model.requested.v1"]]
    found += [f"asked without a fact: {one}" for one in story.questions if one not in asked]
    found += [f"asked {n} times: {one}" for one, n in Counter(story.questions).items() if n > 1]
    intents = {f["operation_id"] for f in facts["tool.intent_recorded.v1"]}
    found += ["a program has an intent"] * bool(intents & {f["operation_id"] for f in programs})
    lines = [line.split() for line in story.done]
    times = Counter(f"{name} {key}" for name, key, _ in lines)
    found += [f"done {n} times: {one}" for one, n in times.items() if n > 1 and "look" not in one]
    kinds = Counter(one.split()[0] for one in times)
    return found if kinds == DONE else [*found, f"done: {kinds}"]


_KINDS = (
    "tool.requested.v1",
    "tool.completed.v1",
    "tool.intent_recorded.v1",
    "model.requested.v1",
)


async def campaign(asked: Campaign) -> None:
    """Every failpoint so many times, in both languages."""
    found = ["", *places(PASSES, asked.options.times)]
    named = {f"{place} {one}".strip(): (place, one) for place in found for one in LANGUAGES}
    with EmbeddedServer(asked.folder / "store", admin=True) as server:

        async def verdict(cell: str, folder: Path) -> Verdict:
            failpoint, language = named[cell]
            story = await kill_at(server, folder, failpoint, language)
            counts = f"{len(story.questions)} asked, {len(story.done)} done"
            return Verdict(faults(story), counts, story.killed or not failpoint)

        await asked.judge(named, verdict)


LANGUAGES = ("python", "typescript")


def main() -> int:
    return run_campaign(options("tests.agents.code_kills", times=5), campaign)


if __name__ == "__main__":
    sys.exit(main())
