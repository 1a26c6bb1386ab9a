"""The output of a run: sent while the run goes on, each piece once, and never lost at an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.execution.result_sender import CHARS_MAX, LiveOutput
from rookery.bus.client.client import Client
from rookery.bus.client.handle import PrintedText
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.run import OutputStream, RunStatus
from tests.execution.realm_fixture import Serving
from tests.nodes import node_on
from tests.stock_client import Fields, Stock, until

PRINTS = "import sys\nprint('one')\nprint('two', file=sys.stderr)\nprint('three', end='')\n"
TYPESCRIPT = "console.log('one'); console.error('two'); console.log('three');"
WHOLE = [(1, "stdout", "one\n"), (2, "stderr", "two\n"), (3, "stdout", "three")]


@pytest.fixture(scope="module")
def asking(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A realm with an inbox of approvals."""
    folder, realm = tmp_path_factory.mktemp("asking"), "asking"
    flags = ("--driver", "sandbox", "--tools", "tests.execution.tools:registry")
    here = str(Path(__file__).parents[2])
    with node_on(server, realm, folder, *flags, PYTHONPATH=here) as node:
        yield Serving(server, node, realm, folder, Role.OPERATOR)


async def first(pieces: AsyncGenerator[PrintedText, None], count: int) -> list[PrintedText]:
    return [await anext(pieces) for _ in range(count)]


def with_client(driving: Serving, scenario: Callable[[Client], Any]) -> None:
    async def connected() -> None:
        async with Client(driving.url, realm=driving.realm) as client:
            await scenario(client)

    asyncio.run(connected())


@pytest.mark.parametrize("tool", ["await pause(600)", "block(600)"])
def test_output_arrives_while_its_run_goes_on_and_stays_when_it_is_cancelled(
    driving: Serving, tool: str
):
    """A run that is cancelled before its first call is on record may have begun in vain, and then
    its result has no output."""
    session = f"live-{len(tool)}"

    async def scenario(client: Client) -> None:
        limits = {"wall_ms": 60_000}
        run = await client.begin(session, PRINTS + tool, output=True, limits=limits)
        async with aclosing(run.output()) as pieces:
            assert await first(pieces, 3) == WHOLE
            async with aclosing(client.events(key=session)) as facts:
                await anext(fact async for fact in facts if "intent_recorded" in fact["type"])
            await run.cancel()
            assert [piece async for piece in pieces] == []
        result = await run.result()
        assert result.status is RunStatus.CANCELLED
        assert (result.stdout, result.stderr) == ("one\nthree", "two\n")

    with_client(driving, scenario)


@pytest.mark.parametrize(
    ("code", "language"), [(PRINTS, "python"), (TYPESCRIPT, "typescript")], ids=["py", "ts"]
)
def test_a_stock_client_gets_the_pieces_in_order_before_the_result(
    driving: Serving, code: str, language: str
):
    async def scenario(client: Stock) -> None:
        session, order = f"stock-{language}", []

        async def on_output(message: Any) -> None:
            order.append(json.loads(message.data))

        await client.nats.subscribe(f"rookery.{driving.realm}.output.{session}", cb=on_output)
        await client.nats.flush()
        answer = await client.ask("run", session, {"code": code, "language": language})
        await client.nats.flush()
        text = "".join(texts(order))
        assert text.replace("three\n", "three") == "one\ntwo\nthree"
        assert order[0]["number"] == 1
        assert {one["run_id"] for one in order} == {answer.body["run_id"]}
        assert answer.body["stderr"] == "two\n"

    driving.visit(scenario)


@pytest.mark.parametrize(
    "work",
    ["", "sum(n * n for n in range(2_000_000))\n"],
    ids=["repeated", "from an image"],
)
def test_a_parked_run_keeps_its_output_and_prints_nothing_again(asking: Serving, work: str):
    """A parked run is repeated or restored; a run that executed much is restored."""
    limits = {"cpu_ms": 60_000, "wall_ms": 60_000}
    session = f"parked-{len(work)}"

    async def scenario(client: Stock) -> None:
        heard: list[Fields] = []

        async def on_output(message: Any) -> None:
            heard.append(json.loads(message.data))

        await client.nats.subscribe(f"rookery.{asking.realm}.output.{session}", cb=on_output)
        async with Client(asking.url_for(Role.OPERATOR), realm=asking.realm) as ours:
            code = work + "print('before')\nrisky('a')\nprint('after')\nrisky('b')"
            run = await ours.begin(session, code, limits=limits)
            for text in ("before\n", "after\n"):
                await until(lambda text=text: text in texts(heard), f"{session} prints {text!r}")
                (asked,) = await pending(ours, session)
                if text == "before\n":
                    await ours.decide(asked, "approved", actor="me")
            while not await is_parked(ours, await run.accepted()):
                await asyncio.sleep(0.01)
            await run.cancel()
            result = await run.result()
        assert result.status is RunStatus.CANCELLED
        assert (result.stdout, texts(heard)) == ("before\nafter\n", ["before\n", "after\n"])

    asking.visit(scenario)


async def pending(client: Client, session: str) -> list[Any]:
    while not (found := await client.approvals(session)):
        await asyncio.sleep(0.01)
    return list(found)


async def is_parked(client: Client, run_id: str) -> bool:
    listed = await client.ask("runs", "all", {"run_id": run_id})
    return bool(listed["runs"][0]["status"] == "waiting_for_approval")


def texts(messages: list[Fields]) -> list[str]:
    """The pieces by their numbers: a run whose start is decided again prints them again."""
    found = {one["number"] + n: piece for one in messages for n, piece in enumerate(one["pieces"])}
    return [found[number]["text"] for number in sorted(found)]


def test_a_run_that_ends_by_its_time_keeps_its_output(driving: Serving):
    async def scenario(client: Client) -> None:
        for n, tail in enumerate(("while True: pass", "await pause(60)", "block(60)")):
            limits = {"wall_ms": 300, "cpu_ms": 10_000}
            result = await client.run(f"late-{n}", PRINTS + "print()\n" + tail, limits=limits)
            assert result.status is RunStatus.TIMEOUT, result
            assert (result.stdout, result.stderr) == ("one\nthree\n", "two\n")

    with_client(driving, scenario)


def test_output_above_the_limit_is_cut_with_a_flag(driving: Serving):
    async def scenario(client: Client) -> None:
        limits = {"max_stdout_bytes": 10}
        result = await client.run("cut", "print('x' * 100)\n1", limits=limits)
        assert (result.stdout, result.output_cut) == ("x" * 10, (OutputStream.STDOUT,))
        plain = await client.run("cut", "print('x')")
        assert not plain.output_cut

    with_client(driving, scenario)


def test_a_program_that_prints_more_than_a_message_holds_leaves_a_gap():
    """What is too much for a message is in the result only."""

    async def scenario() -> list[Fields]:
        sent: list[bytes] = []
        output = LiveOutput(lambda _, body: sent.append(body), "s", "r", lambda: False)
        text = "x" * (CHARS_MAX // 2)
        for number in (1, 2, 3):
            output.add(number, OutputStream.STDOUT, text)
        output.flush()
        output.add(4, OutputStream.STDERR, "end")
        output.flush()
        output.flush()
        return [json.loads(body) for body in sent]

    sent = asyncio.run(scenario())
    assert [(one["number"], len(one["pieces"])) for one in sent] == [(1, 2), (4, 1)]


def test_a_step_that_is_repeated_sends_nothing():
    async def scenario() -> list[bytes]:
        sent: list[bytes] = []
        output = LiveOutput(lambda _, body: sent.append(body), "s", "r", lambda: True)
        output.add(1, OutputStream.STDOUT, "again")
        output.flush()
        return sent

    assert asyncio.run(scenario()) == []
