"""Kill the node at every place of an invocation while hooks change a run, and compare its record
with what its tools did.

Goal: no call is made with arguments that are not on record before it, none twice, and the run ends
with what its hooks made of it, which its replay repeats without any hook. Method: a program whose
inputs, calls and results hooks change, a book of its payments outside of every node, a successor
for the node, and an operator who looks into the book before a call of unknown outcome is resolved.

    python -m tests.chaos.hook_kills [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import digest_json
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.execution.programs import Programs
from tests.hooks.failing_hooks import Book
from tests.nodes import (
    NodeProcess,
    NotReady,
    access_to,
    has_died,
    node_on,
    replace_node,
    rookery_here,
)
from tests.stock_client import Fields, Stock, stock, until

__all__ = ["HookKill", "faults", "hooked_node", "kill_at", "replay_faults", "resume_parked"]

SESSION: Final = "change--once"
PROGRAM: Final = f"[pay({SESSION!r}, amount + n) for n in range(3)] + [look({SESSION!r}, amount)]"
PAYMENTS: Final = ["100", "101", "102"]
RESULT: Final = ["PAID 100", "PAID 101", "PAID 102", 500]
INVOKED: Final = 19
"""One at the beginning of the run, two at its end, and four a call."""
PASSES: Final = {
    **dict.fromkeys(("hook_invoked", "hook_answered"), INVOKED),
    "hook_staged": 7,  # Of those that change something.
    **dict.fromkeys(("append_sent", "appended", "acked"), 10),
}
"""How often the run passes each failpoint at least, however its commits meet."""
REPLAYS: Final = 200
PARKED: Final = 1_000
RESUMES: Final = 4
REPLAYED: Final = f"{REPLAYS} replays"
RESUMED: Final = f"{PARKED} parked runs, resumed"
_realms = count(1)


class HookKill(NamedTuple):
    """The record of a run whose node died, and what its tools and hooks did."""

    killed: bool
    facts: list[Fields]
    book: list[list[str]]
    replay: Fields
    read_again: bool
    """Whether its replay has called anything."""

    def of(self, kind: str) -> list[Fields]:
        return [fact for fact in self.facts if fact["type"] == f"{kind}.v1"]


async def kill_at(server: EmbeddedServer, folder: Path, failpoint: str) -> HookKill:
    """The program on a node that dies at ``failpoint``, if any, and its successor."""
    realm, book = f"hooks{next(_realms)}", Book(folder)
    dies = {"ROOKERY_FAILPOINT": failpoint} if failpoint else {}
    mortal, successor = (
        hooked_node(server, realm, folder, **dies),
        hooked_node(server, realm, folder),
    )
    with closing(mortal), closing(successor):
        with suppress(NotReady):  # It may die before.
            await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(replace_node(mortal, successor))
        try:
            async with stock(server, realm, Role.OPERATOR) as client:
                programs = Programs(client, SESSION)
                await programs.follow()
                await _run(client, programs, book)
                lines = book.lines()
                replay = await _replayed(client, programs)
                again = book.lines() != lines
                killed = bool(failpoint) and await has_died(mortal)
                return HookKill(killed, programs.facts, lines, replay, again)
        finally:
            replacing.cancel()
            with suppress(asyncio.CancelledError):
                await replacing


def hooked_node(
    server: EmbeddedServer, realm: str, folder: Path, registry: str = "changing", **variables: str
) -> NodeProcess:
    flags = ("--driver", "sandbox", "--tools", f"tests.hooks.failing_hooks:{registry}")
    where = {"HOOKS_FOLDER": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    return node_on(server, realm, folder, *flags, **where, **variables)


async def _run(client: Stock, programs: Programs, book: Book) -> None:
    """Run the program; resolve calls of unknown outcome as the book says."""
    running = programs.begin(PROGRAM)
    resolved = set[str]()
    while not programs.ends():
        for lost in programs.of("tool.recovery_required"):
            if lost["operation_id"] not in resolved:
                resolved.add(lost["operation_id"])
                await _resolve(client, programs, book, lost)
        await asyncio.sleep(0.02)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


async def _resolve(client: Stock, programs: Programs, book: Book, lost: Fields) -> None:
    """What the book has is done; else the call is made again."""
    operation = lost["operation_id"]
    requested = next(f for f in programs.of("tool.requested") if f["operation_id"] == operation)
    amount = str(requested["arguments"]["kwargs"]["amount"])
    is_paid = ["pay", SESSION, amount] in book.lines()
    outcome: Fields = {"completed": f"paid {amount}"} if is_paid else {"retry": True}
    body = {"run_id": lost["run"], "operation_id": operation, "now": True, **outcome}
    await client.ask("resolve", SESSION, body)


async def _replayed(client: Stock, programs: Programs) -> Fields:
    (run,) = programs.ends()
    while True:
        report = (await client.ask("replay", programs.session, {"run_id": run})).body
        if report.get("state") != "replaying":
            return report


# --- replays --------------------------------------------------------------------------------------

STEPS: Final = (
    "out.append(pay(session, {n} + 200))",
    "out.append(pay(session, {n}))",
    "out.append(attempt(lambda: pay(session, 213)))",
    "out.append(look(session, {n}))",
    "out.append(look(session, -1 - {n}))",
    "out.append(amount + {n})",
)
"""Calls that a hook changes, lets through or denies; results that it changes or lets be asked for
again; and an input of its own."""
ENDS: Final = ("out", "out", "out + ['withhold']", "[look(session, {n}), amount, 'again']")
"""What the run returns: some results are withheld, and some programs are executed once more."""
TRY: Final = """
out = []
def attempt(call):
    try:
        return call()
    except Exception as error:
        return error.code
"""


def random_program(number: int) -> str:
    dice = random.Random(number)
    end = dice.choice(ENDS).format(n=dice.randrange(100))
    steps = [dice.choice(STEPS).format(n=dice.randrange(100)) for _ in range(dice.randrange(1, 6))]
    if "again" in end:  # Only a program that has not acted is executed once more.
        steps = [step for step in steps if "pay" not in step]
    session = f"session = 'change--{number}'"
    return "\n".join([session, TRY, *steps, end])


async def replay_faults(server: EmbeddedServer, folder: Path, runs: int) -> list[str]:
    """What is wrong with the replays of so many random runs, of which hooks change everything."""
    realm, book, found = f"hooks{next(_realms)}", Book(folder), list[str]()
    changes = set[str]()
    with closing(hooked_node(server, realm, folder)) as node:
        await asyncio.to_thread(node.start)
        async with stock(server, realm, Role.OPERATOR) as client:
            for number in range(runs):
                programs = Programs(client, f"change--{number}")
                await programs.follow()
                answer = await programs.run(random_program(number))
                lines = book.lines()
                replay = await _replayed(client, programs)
                changes |= {fact["change"]["type"] for fact in programs.of("hook.response_decided")}
                if replay.get("state") != "equal" or book.lines() != lines:
                    found.append(f"{number}: {answer['status']}, {replay}")
    missed = CHANGES - changes if runs >= ALL_CHANGES else set()
    return [*found, *(f"no run has a change {one}" for one in sorted(missed))]


CHANGES: Final = frozenset(
    {
        *("inject_context", "modify_tool_request", "deny", "rewrite_tool_result"),
        *("request_retry", "stop_completion_with_repair_needed"),
    }
)
ALL_CHANGES: Final = 20
"""So many runs have every kind of change."""


# --- parked runs ----------------------------------------------------------------------------------


class Resumption(NamedTuple):
    """Runs that a dead guard has parked, once it is back."""

    seconds: float
    """From the command to the last end."""
    results: Counter[str]
    paid: int


async def resume_parked(server: EmbeddedServer, folder: Path, runs: int) -> Resumption:
    """Park so many runs, revive the guard and let the command of an operator continue them."""
    realm, book = f"hooks{next(_realms)}", Book(folder)
    ended = Counter[str]()
    with closing(hooked_node(server, realm, folder, "guarded")) as node:
        await asyncio.to_thread(node.start)
        async with stock(server, realm, Role.OPERATOR) as client:

            async def seen(message: Any) -> None:
                for fact in json.loads(message.data):
                    if fact["type"] == "turn.completed.v1":
                        ended[str(fact["result"]["result"])] += 1

            await client.watch(f"rookery.{realm}.ev.turn.*", seen)
            at_once = asyncio.Semaphore(32)

            async def park(session: str) -> None:
                async with at_once:
                    body = {"code": f"pay({session!r}, 5)", "timeout_ms": 60_000}
                    answer = await client.ask("run", session, body)
                assert answer.body["error"]["code"] == "HOOK_INTERRUPTED", answer

            await asyncio.gather(*(park(f"parked--{number}") for number in range(runs)))
            assert not book.lines()
            book.heal()
            began_s = perf_counter()
            command = ("hooks", "resume", "dead-guard", *access_to(server, realm))
            for _ in range(RESUMES):  # A guard that took too long has parked its run again.
                said = await asyncio.to_thread(rookery_here, folder, *command)
                assert not said.code, said
                with suppress(AssertionError):
                    await until(lambda: ended.total() == runs, deadline_s=30)
                    break
            return Resumption(perf_counter() - began_s, ended, len(book.lines()))


# --- the judge ------------------------------------------------------------------------------------


def faults(kill: HookKill) -> list[str]:
    """What is wrong with the record of a run."""
    found: list[str] = []
    ended = kill.of("turn.completed")
    result = ended[0]["result"]["result"] if ended else "no result"
    if result != RESULT:
        found.append(f"the run ended with {result}")
    if [words[2] for words in kill.book if words[0] == "pay"] != PAYMENTS:
        found.append(f"the book has {kill.book}")
    found += _faults_of_calls(kill)
    seqs = [record["journal_seq"] for record in _records(kill)]
    if seqs != sorted(set(seqs)):
        found.append(f"the records of hooks are numbered {seqs}")
    if kill.replay.get("state") != "equal" or kill.read_again:
        found.append(f"the replay says {kill.replay}")
    return found


def _records(kill: HookKill) -> list[Any]:
    return [fact["record"] for fact in kill.of("hook.response_decided")]


def _faults_of_calls(kill: HookKill) -> list[str]:
    """Calls whose arguments are not those of a change that is on record before them."""
    found, changed = [], dict[str, Fields]()
    for fact in kill.facts:
        match fact["type"]:
            case "hook.response_decided.v1" if fact["point"] == "before_tool_call":
                changed[fact["operation_id"]] = fact["change"]["payload"]["arguments_patch"]
            case "tool.requested.v1" if fact["name"] == "pay":
                arguments, patch = fact["arguments"], changed.get(fact["operation_id"])
                if patch is None or arguments["kwargs"]["amount"] != patch["amount"]:
                    found.append(f"{arguments} were requested, {patch} is on record")
                if fact["executed_digest"] != digest_json(arguments):
                    found.append(f"{arguments} have another digest")
    calls = {one["operation_id"] for one in kill.of("tool.requested") if one["name"] == "pay"}
    return found if len(calls) == len(PAYMENTS) else [*found, f"{len(calls)} payments requested"]


async def campaign(asked: Campaign) -> None:
    with EmbeddedServer(asked.folder / "store", admin=True) as server:

        async def verdict(cell: str, folder: Path) -> Verdict:
            if cell == REPLAYED:
                return Verdict(await replay_faults(server, folder, REPLAYS))
            if cell == RESUMED:
                resumed = await resume_parked(server, folder, PARKED)
                right = resumed.results == {"paid 5": PARKED} and resumed.paid == PARKED
                return Verdict([] if right else [str(resumed)], f"in {resumed.seconds:.1f} s")
            kill = await kill_at(server, folder, cell)
            did = Counter(words[0] for words in kill.book)
            counts = f"{did['cap']} asked, {did['pay']} paid"
            return Verdict(faults(kill), counts, kill.killed)

        await asked.judge(["", *places(PASSES, INVOKED), REPLAYED, RESUMED], verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.hook_kills"), campaign))
