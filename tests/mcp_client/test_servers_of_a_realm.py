"""MCP servers as surfaces of a running realm, by the command line: added, called, removed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.mcp_client.http_servers import official_http
from tests.mcp_client.server_fixtures import HOSTILE, is_running
from tests.mcp_client.test_published_servers import SERVERS, source_of
from tests.nodes import NodeProcess, node_on
from tests.ops.fixtures import Ended, Realm
from tests.stock_client import stock

pytestmark = pytest.mark.timeout(300)  # The first one installs the published servers.

SECRET = "a-secret-of-twenty-0001"
FREE = {"policy": {"default": {"approval": "none"}}}


class ServedRealm(Realm):
    """A realm with a node, and the file of its MCP servers."""

    def node(self) -> NodeProcess:
        return node_on(self.server, self.name, self.home, "--driver", "sandbox")

    def add(self, **servers: Any) -> Ended:
        (self.home / "servers.json").write_text(json.dumps({"mcpServers": servers}))
        return self.rookery("surfaces", "add", "--mcp", "servers.json")

    def run(self, code: str, *more: str) -> Any:
        """What a program returns."""
        ended = self.rookery("run", "--json", *more, "-e", code)
        assert ended.code == 0, ended
        return ended.json["result"]

    def parks(self, session: str, code: str) -> Any:
        """The first reply to a run, which says what it waits for."""

        async def ask() -> Any:
            async with stock(self.server, self.name, Role.OPERATOR) as client:
                return (await client.ask("run", session, {"code": code})).body["status"]

        return asyncio.run(ask())

    def surface(self, name: str) -> dict[str, Any]:
        return dict(self.rookery("surfaces", "show", name, "--json").json)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRealm]:
    home = tmp_path_factory.mktemp("realm")
    with EmbeddedServer(home / "store", admin=True) as server:
        realm = ServedRealm(server, "served", home)
        with realm.node():
            yield realm


def hostile(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(HOSTILE), "usual"], **more}


def test_published_servers_are_added_to_a_running_realm_and_called_with_approval(
    realm: ServedRealm, tmp_path: Path
):
    (tmp_path / "tea.txt").write_text("green tea")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    file: dict[str, Any] = {}
    for server in SERVERS:
        program, *arguments = source_of(server, tmp_path).command
        file[server.name] = {"command": program, "args": arguments}
    file["memory"]["env"] = {"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    added = realm.add(**file)
    assert added.code == 0, added
    names = realm.run("[tool['name'] for tool in list_tools()]")
    for server in SERVERS:
        assert sum(name.startswith(f"{server.name}_") for name in names) == server.tools
    assert "Secure MCP Filesystem" in realm.rookery("surfaces", "logs", "filesystem").out

    explained = realm.rookery("policy", "explain", "filesystem_read_text_file").out
    assert "filesystem_read_text_file: ask" in explained
    code = f"await filesystem_read_text_file(path={str(tmp_path / 'tea.txt')!r})"
    assert realm.parks("tea", code) == "waiting_for_approval"
    (asked,) = realm.rookery("approvals", "list", "--json").json["approvals"]
    assert (asked["tool"], asked["surface"]) == ("filesystem_read_text_file", "filesystem")
    assert realm.rookery("approvals", "approve", asked["approval_id"]).code == 0

    def result() -> Ended:
        return realm.rookery("runs", "result", asked["run_id"])

    wait(lambda: "green tea" in result().out)
    shown = realm.rookery("runs", "show", asked["run_id"]).out
    assert "filesystem" in shown
    assert "allowed once" in shown
    removed = realm.rookery("surfaces", "remove", *file)
    assert removed.code == 0, removed
    assert realm.run("[tool['name'] for tool in list_tools() if '_' in tool['name']]") == [
        name for name in ("list_tools", "describe_tool", "current_policy") if name in names
    ]


def wait(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.1)


def test_a_server_that_dies_is_started_again_and_its_values_are_hidden(realm: ServedRealm):
    added = realm.add(shop=hostile(env={"API_TOKEN": SECRET}, rookery=FREE))
    assert added.code == 0, added
    pid = realm.run("(await shop_environ())['pid']")
    assert is_running(pid)
    assert "API_TOKEN" not in str(realm.run("await shop_echo(text='x')"))
    source = realm.surface("shop")["source"]
    assert "sealed" in str(source["environment"]) or "ciphertext" in str(source["environment"])
    assert SECRET not in str(source)
    failed = realm.rookery("run", "--json", "-e", "await shop_fail()")
    assert "it did not work: [credential]" in failed.out, failed
    os.kill(pid, signal.SIGKILL)
    again = realm.run("(await shop_environ())['pid']")
    assert again != pid
    assert "the server ended with" in realm.rookery("surfaces", "logs", "shop").out
    exported = realm.home / "journal.jsonl"
    assert realm.rookery("journal", "export", str(exported)).code == 0
    assert SECRET not in exported.read_text()
    assert realm.rookery("surfaces", "remove", "shop").code == 0
    wait(lambda: not is_running(again))


def test_a_call_whose_server_dies_waits_for_an_operator(realm: ServedRealm):
    assert realm.add(shop=hostile(rookery=FREE)).code == 0
    assert realm.parks("dies", "await shop_die()") == "interrupted"
    (run,) = realm.rookery("runs", "list", "--session", "dies", "--json").json["runs"]
    assert "RECOVERY_REQUIRED" in realm.rookery("runs", "show", run["run_id"]).out
    assert realm.rookery("surfaces", "remove", "shop").code == 0


def test_a_tool_that_changes_after_its_approval_is_not_called(realm: ServedRealm):
    policy = {"policy": {"tools": {"change": {"approval": "none"}}}}
    assert realm.add(shop=hostile(rookery=policy)).code == 0
    assert realm.parks("changed", "await shop_echo(text='x')") == "waiting_for_approval"
    assert realm.run("await shop_change()") == "changed"
    (asked,) = realm.rookery("approvals", "list", "--json").json["approvals"]
    assert realm.rookery("approvals", "approve", asked["approval_id"]).code == 0

    def result() -> Ended:
        return realm.rookery("runs", "result", asked["run_id"])

    wait(lambda: "TOOL_CHANGED" in str(result()))
    assert realm.rookery("surfaces", "remove", "shop").code == 0


def test_a_file_that_cannot_be_used_says_what_to_type(realm: ServedRealm):
    refused = realm.add(shop={"command": "no-such-program"})
    assert refused.code != 0
    assert "SURFACE_UNAVAILABLE" in refused.err
    assert "no-such-program" in refused.err
    unknown = realm.rookery("surfaces", "add", "--mcp", "servers.json", "other")
    assert "there are: shop" in unknown.err
    assert "rookery surfaces list" in realm.rookery("surfaces", "logs", "nothing").err
    both = realm.rookery("surfaces", "add", "a", "--worker", "--mcp", "servers.json")
    assert "rookery surfaces add" in both.err


def test_resources_that_a_policy_opens_are_read_by_uri(realm: ServedRealm):
    with official_http() as port:
        where = {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}
        opened = {"policy": {"resources": True}}
        assert realm.add(notes={**where, "rookery": opened}, closed=where).code == 0
        read = realm.rookery("resources", "read", "reader", "mcp://notes/notes://today")
        assert read.out.strip() == "buy tea", read
        listed = realm.rookery("resources", "read", "reader", "mcp://notes/")
        assert "notes://today" in listed.out, listed
        schemes = realm.rookery("resources", "list", "--json").json["schemes"]
        assert [one["names"] for one in schemes if one["scheme"] == "mcp"] == [["notes"]]
        for uri, code in (
            ("mcp://closed/notes://today", "PERMISSION_DENIED"),
            ("mcp://nowhere/notes://today", "RESOURCE_NOT_FOUND"),
            ("mcp://notes/notes://never", "SURFACE_UNAVAILABLE"),
        ):
            refused = realm.rookery("resources", "read", "reader", uri)
            assert code in refused.out + refused.err, refused
        assert realm.rookery("surfaces", "remove", "notes", "closed").code == 0


def test_doctor_connects_to_each_server_and_names_what_it_found(realm: ServedRealm, tmp_path: Path):
    program = tmp_path / "server.py"
    shutil.copy(HOSTILE, program)
    command = {"command": sys.executable, "args": ["-I", "-S", str(program), "usual"]}
    assert realm.add(mortal={**command, "rookery": FREE}).code == 0
    assert " connected, " in realm.rookery("doctor").out
    pid = realm.run("(await mortal_environ())['pid']")
    program.unlink()
    os.kill(pid, signal.SIGKILL)
    said = [""]

    def has_failed() -> bool:
        said[0] = realm.rookery("doctor").out
        return "mortal failed: the server " in said[0]

    wait(has_failed)
    assert "rookery surfaces show mortal" in said[0], "and the next command"
    pending = realm.run("{tool['name'] for tool in list_tools() if tool.get('pending')}")
    assert "mortal_echo" in pending
    assert realm.rookery("surfaces", "remove", "mortal").code == 0
