"""Facts say which credential sent a command, and do not say where its client listens."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import nats

from rookery.bus import connect_sync
from rookery.bus.credentials import identity_header
from rookery.bus.roles import Role
from rookery.ops.config import address_of
from tests.execution.realm_fixture import Serving
from tests.nodes import ROOKERY, NodeProcess, clean_environment, rookery_here
from tests.stock_client import Stock, stock, until


def accepted(client: Any, session: str) -> dict[str, Any]:
    """The fact that a session has accepted its first input."""
    facts = client.events(family="session", key=session)
    return next(fact for fact in facts if fact["type"] == "session.input_accepted.v1")


def run_from_stdin(folder: Path, code: str, *where: str) -> str:
    """What ``rookery run -`` prints."""
    command = [ROOKERY, "run", "-", *where]
    environment = clean_environment(folder)
    done = subprocess.run(
        command, input=code, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_a_signed_command_names_its_credential_in_its_facts_and_lists(tmp_path: Path) -> None:
    where = ("--store", str(tmp_path / "store"))
    with NodeProcess(tmp_path, *where, "--driver", "sandbox") as node:
        path = tmp_path / "store/credentials/default.client.json"
        with connect_sync(address_of(node.url), credential=path) as client:
            client.run("signed", "1")
            client.submit("signed-durably", "1").result()
            for session in ("signed", "signed-durably"):
                assert accepted(client, session)["by"] == "client"
        listed = rookery_here(tmp_path, "runs", "list", "--json", *where).json
        assert [run["by"] for run in listed["runs"]] == ["client", "client"]
        assert run_from_stdin(tmp_path, "40 + 2", *where) == "42\n"
        from_stdin = ("runs", "list", "--input-source", "stdin", "--json", *where)
        (listed,) = rookery_here(tmp_path, *from_stdin).json["runs"]
        shown = rookery_here(tmp_path, "runs", "show", listed["run_id"], *where)
        assert "accepted from stdin" in shown.out
        node.stop()


def test_an_unsigned_or_falsely_signed_command_is_unsigned(driving: Serving) -> None:
    other = driving.server.credential(Role.OPERATOR, realm="elsewhere")

    async def scenario(client: Stock) -> None:
        await client.ask("run", "unsigned", {"code": "1"})
        forged = identity_header(other, b"n" * 16)
        await client.ask("run", "forged", {"code": "1"}, Rookery_By=forged)

    driving.visit(scenario)
    with connect_sync(driving.url, realm=driving.realm) as client:
        for session in ("unsigned", "forged"):
            assert accepted(client, session)["by"] == "unsigned"


def test_the_fact_of_an_input_names_its_source(driving: Serving) -> None:
    """That of the subject, or the one that the client names."""

    async def scenario(client: Stock) -> None:
        await client.ask("run", "source-rpc", {"code": "1"})
        await client.submit("run", "source-tcp", {"code": "1"})
        stdin = {"Rookery_Input_Source": "stdin"}
        await client.ask("run", "source-stdin", {"code": "1"}, **stdin)
        await until(lambda: client.inputs("source-tcp"), "the run is accepted")
        wrong = await client.ask("run", "source-wrong", {"code": "1"}, Rookery_Input_Source="pipe")
        assert wrong.body["error"]["code"] == "INVALID_ARGUMENT"
        assert "pipe" in wrong.body["error"]["message"]

    driving.visit(scenario)
    sources = {"source-rpc": "rpc", "source-tcp": "tcp", "source-stdin": "stdin"}
    with connect_sync(driving.url, realm=driving.realm, input_source="webhook") as client:
        client.run("source-webhook", "1")
        for session, source in (sources | {"source-webhook": "webhook"}).items():
            assert accepted(client, session)["input_source"] == source


def test_no_fact_says_where_a_client_listens(driving: Serving) -> None:
    async def scenario(client: Stock) -> None:
        reply = client.reply("hidden")
        await client.submit("run", "hidden", {"code": "1"}, Rookery_Reply=reply)
        await client.ask("run", "hidden", {"code": "2"})
        await until(lambda: len(client.inputs("hidden")) == 2, "the feed shows both runs")
        facts = json.dumps(client.facts["hidden"])
        assert "reply_to" in facts
        assert "_INBOX" not in facts

    driving.visit(scenario)


def test_no_reply_reaches_an_approval_service(driving: Serving) -> None:
    """A node may ask services, so it must not be made to answer a client there."""
    desk = f"service.{driving.realm}.desk"

    async def asked(role: Role, client: Stock) -> int:
        heard = 0

        async def count(_: object) -> None:
            nonlocal heard
            heard += 1

        async with stock(driving.server, driving.realm, role) as approver:
            await approver.nats.subscribe(desk, cb=count)
            await approver.nats.flush()
            await client.publish("api", "run", "steered", {"code": "1"}, reply=desk)
            await client.submit("run", "steered", {"code": "2"}, Rookery_Reply=desk)
            assert (await client.ask("run", "steered", {"code": "3"})).body["result"] == 3
            node = await nats.connect(driving.url_for(Role.NODE))
            await node.publish(desk, b"{}")
            await node.close()
            await until(lambda: heard)
        return heard

    async def scenario(client: Stock) -> None:
        assert await asked(Role.APPROVER, client) == 1, "what the node itself asked"

    driving.visit(scenario)
