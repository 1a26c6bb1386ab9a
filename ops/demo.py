"""``make demo``: runs programs, prints the facts as they arrive, and ends.

The client's side is a stock NATS client and JSON. Of Rookery the demo uses only the node, with the
tools of ``ops/examples``, and the journal's audit.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import nats

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import Filter
from rookery.bus.roles import Role
from rookery.ops.config import Config, NodeConfig, address_of
from rookery.ops.logs import configure
from rookery.ops.node import Node
from rookery.ops.server import ConfiguredServer, RealmServer

__all__ = ["main"]

TOOLS = "rookery.ops.examples.tools:registry"
TIMEOUT_S = 60.0


class DemoProgram(NamedTuple):
    """A program to run, and its expected end."""

    about: str
    code: str
    ends: object
    """The result, or the code of the error."""
    session: str = "demo"
    language: str = "python"


PROGRAMS = (
    DemoProgram("A program", "menu = ['tea', 'cake']\nlen(menu)", 2),
    DemoProgram(
        "A tool, called like a function; the session remembers the menu",
        "sum(price(item) for item in menu)",
        8,
    ),
    DemoProgram(
        "Awaited tools, called at the same time",
        "import asyncio\nawait asyncio.gather(*(weather(city) for city in ('Oslo', 'Lima')))",
        ["snow", "sun"],
    ),
    DemoProgram(
        "A program that fails, and where", "total = price('tea')\ntotal / 0", "RUNTIME_ERROR"
    ),
    DemoProgram(
        "The menu once more, in TypeScript and in a session of its own",
        "const menu: string[] = ['tea', 'cake'];\nresult = menu.map((item) => price(item));",
        [3, 5],
        "demo-ts",
        "typescript",
    ),
)


def main() -> int:
    """Run the demo; exit code 0 if every program ended as expected."""
    configure("warning", "auto", sys.stderr)
    with tempfile.TemporaryDirectory(prefix="rookery-demo-") as store:
        print_text("Starting a node with an embedded server; its guest is built at first use ...")
        config = Config(store=store, node=NodeConfig(tools=TOOLS))
        with Node(config) as node:
            print_text(f"ready {address_of(node.url)}\n")
            spoken = [one for one in PROGRAMS if one.language in node.languages]
            work = tour(
                ConfiguredServer(config).require(Role.CLIENT),
                ConfiguredServer(config).require(Role.NODE),
                spoken,
            )
            return asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


async def tour(server: RealmServer, node: RealmServer, programs: Sequence[DemoProgram]) -> int:
    """The steps of a user in another terminal, with the credential of a client."""
    user, password = server.access.user, server.access.password
    prefix = server.access.inbox_prefix
    client = await nats.connect(server.url, user=user, password=password, inbox_prefix=prefix)
    await client.subscribe("rookery.default.ev.>", cb=show_facts)
    print_text("Programs, published as plain JSON to rookery.default.cmd.run.<session>:\n")
    answers = [await submit(client, f"demo-{n}", one) for n, one in enumerate(programs, 1)]
    as_expected = all(map(check_ends, programs, answers))
    print_text("The first one once more, under the same message id: answered, not run again.\n")
    again = await submit(client, "demo-1", programs[0])
    as_expected = as_expected and again == answers[0]
    await client.close()
    print_text("The journal, read back and verified:")
    print_text(f"  {await verify(node)} messages, every one continues the chain of its entity\n")
    print_text(
        "Done. Start a node of your own: rookery up"
        if as_expected
        else "A program did not end as expected."
    )
    return 0 if as_expected else 1


async def submit(client: Any, message_id: str, program: DemoProgram) -> dict[str, Any]:
    """Publish a run and wait for its result on a reply subject."""
    reply_to = client.new_inbox()
    answers = await client.subscribe(reply_to)
    print_text(f"{program.about} ({message_id}, session {program.session}):")
    for line in program.code.splitlines():
        print_text(f"  | {line}")
    await client.publish(
        f"rookery.default.cmd.run.{program.session}",
        msgspec.json.encode({"code": program.code, "language": program.language}),
        headers={"Nats-Msg-Id": message_id, "Rookery-Reply": reply_to},
    )
    message = await answers.next_msg(timeout=TIMEOUT_S)
    await answers.unsubscribe()
    answer: dict[str, Any] = msgspec.json.decode(message.data)
    if error := answer["error"]:
        where = f" at line {error['span']['line']}" if error.get("span") else ""
        print_text(f"  <- {error['code']}: {error['message']}{where}\n")
    else:
        print_text(f"  <- {msgspec.json.encode(answer['result']).decode()}\n")
    return answer


def check_ends(program: DemoProgram, answer: dict[str, Any]) -> bool:
    error = answer["error"]
    return bool((error["code"] if error else answer["result"]) == program.ends)


async def show_facts(message: Any) -> None:
    """Print one line per fact, as any subscriber sees it."""
    for fact in msgspec.json.decode(message.data):
        print_text(f"     {fact['id']:<18} {fact['type']:<32} {fact.get('name', '')}".rstrip())


async def verify(node: RealmServer) -> int:
    """Check every message of the journal against its chain; how many there are."""
    bus, audit, count = JetStreamBus(node.url, node.access), ChainAudit(), 0
    await bus.start()
    try:
        async for page in bus.journal.scan(Filter()):
            for stored in page:
                audit.add(stored)
                count += 1
    finally:
        await bus.stop()
    return count


def print_text(line: str) -> None:
    """Print without buffering."""
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
