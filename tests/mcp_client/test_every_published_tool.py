"""Every tool of six published servers: listed, called after an approval of its own, recorded."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.surfaces import ChangeCatalogue
from tests.mcp_client.test_published_servers import SERVERS, source_of
from tests.nodes import node_on
from tests.stock_client import Stock, stock, until

pytestmark = pytest.mark.timeout(300)  # The first one installs the servers.

REALM: Final = "published"
TEA: Final = {"name": "tea", "entityType": "drink", "observations": ["green"]}
LIKES: Final = {"from": "tea", "to": "tea", "relationType": "likes"}
HELLO: Final = "data:text/plain;base64,aGVsbG8="
Calls = Sequence[tuple[str, Mapping[str, Any]]]


AT: Final = "FOLDER"
"""In arguments: the folder of the test."""
REPO: Final = {"repo_path": AT}
TEXT: Final = f"{AT}/tea.txt"
CALLS: Final[Mapping[str, Calls]] = {
    "time": [
        ("get_current_time", {"timezone": "UTC"}),
        (
            "convert_time",
            {"source_timezone": "UTC", "target_timezone": "UTC", "time": "12:00"},
        ),
    ],
    "git": [
        ("git_status", REPO),
        ("git_diff_unstaged", REPO),
        ("git_add", {**REPO, "files": ["tea.txt"]}),
        ("git_diff_staged", REPO),
        ("git_commit", {**REPO, "message": "tea"}),
        ("git_log", REPO),
        ("git_show", {**REPO, "revision": "HEAD"}),
        ("git_create_branch", {**REPO, "branch_name": "other"}),
        ("git_branch", {**REPO, "branch_type": "local"}),
        ("git_checkout", {**REPO, "branch_name": "other"}),
        ("git_diff", {**REPO, "target": "HEAD"}),
        ("git_reset", REPO),
    ],
    "fetch": [("fetch", {"url": "http://127.0.0.1:9/"})],
    "filesystem": [
        ("list_allowed_directories", {}),
        ("create_directory", {"path": f"{AT}/cups"}),
        ("write_file", {"path": f"{AT}/cups/one", "content": "black"}),
        (
            "edit_file",
            {
                "path": f"{AT}/cups/one",
                "edits": [{"oldText": "black", "newText": "mint"}],
            },
        ),
        (
            "move_file",
            {"source": f"{AT}/cups/one", "destination": f"{AT}/cups/two"},
        ),
        ("read_file", {"path": TEXT}),
        ("read_text_file", {"path": TEXT}),
        ("read_media_file", {"path": TEXT}),
        ("read_multiple_files", {"paths": [TEXT]}),
        ("list_directory", {"path": AT}),
        ("list_directory_with_sizes", {"path": AT}),
        ("directory_tree", {"path": f"{AT}/cups"}),
        ("search_files", {"path": AT, "pattern": "tea*"}),
        ("get_file_info", {"path": TEXT}),
    ],
    "memory": [
        ("create_entities", {"entities": [TEA]}),
        ("create_relations", {"relations": [LIKES]}),
        ("add_observations", {"observations": [{"entityName": "tea", "contents": ["hot"]}]}),
        ("read_graph", {}),
        ("search_nodes", {"query": "tea"}),
        ("open_nodes", {"names": ["tea"]}),
        (
            "delete_observations",
            {"deletions": [{"entityName": "tea", "observations": ["hot"]}]},
        ),
        ("delete_relations", {"relations": [LIKES]}),
        ("delete_entities", {"entityNames": ["tea"]}),
    ],
    "everything": [
        ("echo", {"message": "tea"}),
        ("get_annotated_message", {"messageType": "success"}),
        ("get_env", {}),
        ("get_resource_links", {"count": 2}),
        ("get_resource_reference", {}),
        ("get_structured_content", {"location": "Chicago"}),
        ("get_sum", {"a": 1, "b": 2}),
        ("get_tiny_image", {}),
        ("gzip_file_as_resource", {"name": "hello.gz", "data": HELLO}),
        ("toggle_simulated_logging", {}),
        ("toggle_subscriber_updates", {}),
        ("trigger_long_running_operation", {"duration": 0.1, "steps": 1}),
        ("simulate_research_query", {"topic": "tea"}),
    ],
}
"""The calls of each server's tools, in an order in which all succeed."""


def program_of(server: str, folder: Path) -> str:
    """Call the server's tools one after the other; what failed, by tool."""
    lines = [
        f"names = sorted(t['name'] for t in list_tools() if t['name'].startswith('{server}_'))"
    ]
    lines.append("failed = {}")
    for tool, arguments in CALLS[server]:
        lines += [
            "try:",
            f"    await {server}_{tool}(**{dict(arguments)!r})",
            "except Exception as error:",
            f"    failed[{tool!r}] = str(error)",
        ]
    return "\n".join([*lines, "[names, failed]"]).replace(AT, str(folder))


async def approve_each(client: Stock, approved: list[str]) -> None:
    """Approve every call that is asked about, as an approver who watches the feed does."""

    async def seen(message: Any) -> None:
        for fact in json.loads(message.data):
            if fact["type"] != "approval.requested.v1":
                continue
            answer = {
                "approval_id": fact["approval_id"],
                "decision": "approved",
                "actor": "ann",
                "request_digest": fact["request_digest"],
            }
            approved.append(fact["tool"])
            name = f"decide-{fact['approval_id']}"
            await client.submit("decide", fact["session"], answer, Nats_Msg_Id=name)

    await client.watch(f"rookery.{REALM}.ev.approval.*", seen)


async def result_of(client: Stock, session: str, code: str) -> Any:
    """What the run returns in the end."""
    name, request = f"run-{session}", {"code": code, "limits": {"wall_ms": 60_000}}
    await client.submit("run", session, request, Rookery_Reply=client.reply(name))

    def final() -> Any:
        return next((a for a in client.answers[name] if a.body.get("status") == "ok"), None)

    return (await until(final, f"the run of {session}", 240.0)).body["result"]


def test_every_tool_of_the_published_servers_is_called_after_its_approval(tmp_path: Path):
    (tmp_path / "tea.txt").write_text("green tea")
    for command in (
        ("init", "--quiet"),
        ("config", "user.name", "a"),
        ("config", "user.email", "b"),
    ):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    sources = {server.name: source_of(server, tmp_path) for server in SERVERS}

    async def scenario(server: EmbeddedServer) -> None:
        approved: list[str] = []
        async with stock(server, REALM, Role.OPERATOR) as client:
            change = msgspec.json.encode(ChangeCatalogue(add=sources))
            added = await client.ask("catalogue", REALM_KEY, change)
            assert not added.code, added
            await approve_each(client, approved)
            runs = [result_of(client, name, program_of(name, tmp_path)) for name in CALLS]
            for name, (listed, failed) in zip(CALLS, await asyncio.gather(*runs), strict=True):
                assert listed == sorted(f"{name}_{tool}" for tool, _ in CALLS[name])
                assert set(failed) == ({"fetch"} if name == "fetch" else set()), failed
        assert sorted(approved) == sorted(f"{s}_{tool}" for s in CALLS for tool, _ in CALLS[s])

    with (
        EmbeddedServer(tmp_path / "store", admin=True) as server,
        node_on(server, REALM, tmp_path, "--driver", "sandbox"),
    ):
        asyncio.run(scenario(server))
