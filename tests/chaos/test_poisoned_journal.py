"""Foreign messages in the journal: a holder of the server's credential published them.

``golden/poisoned.jsonl`` is the journal that a node of commit ``7e44090`` left, with what a holder
of its one token then appended: an approver with the right chain, messages without headers, of an
unknown type, without JSON, and on a subject that names no entity.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats

from rookery.bus.client import Client
from rookery.bus.nats.connection import Connection, Outgoing
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects
from tests.bus.formats import make_format_1
from tests.nodes import NodeProcess, Said, rookery_here
from tests.ops.test_node_metrics import scrape, value
from tests.stock_client import inbox_prefix

SUBJECTS = Subjects("default")
Foreign = tuple[str, bytes, dict[str, str]]
FOREIGN: Sequence[Foreign] = (
    ("x", b"junk", {}),
    ("session.a.b.c", b"[]", {}),
    ("approval._approvers", b'[{"type":"approval.approver_added.v1"}]', {}),
    ("nosuch.key", b"\xff\xfe", {"Rookery-Chain": "x"}),
    ("session.poisoned", b"not json", {"Rookery-Chain": "0" * 64}),
    ("turn.poisoned", b'[{"type":"turn.nonsense.v1"}]', {}),
    ("node.x", b'[{"type":"node.weird.v1","id":"node.x.1"}]', {}),
    ("tool.key", b"", {"Rookery-Chain": "0" * 64}),
)
"""Subject below the stored facts, body, headers."""
OLDER_JOURNAL = Path(__file__).parents[1] / "golden" / "poisoned.jsonl"
OLDER_POISON = {
    (27, "approval/_approvers", "CHAIN_BROKEN"),
    (28, "foreign/x", "CHAIN_BROKEN"),
    (29, "node/x", "FACT_UNKNOWN"),
    (30, "turn/desk", "FACT_INVALID"),
    (31, "session/poisoned", "FACT_UNKNOWN"),
}
"""Beside message 26, an approver whom nothing has signed: as all were in that version."""


async def poison(url: str, messages: Sequence[Foreign] = FOREIGN) -> None:
    """Store foreign messages, with a term read from the stream's configuration."""
    client = await nats.connect(url, inbox_prefix=inbox_prefix(url))
    try:
        answer = await client.request(f"$JS.API.STREAM.INFO.{SUBJECTS.journal_stream}", b"")
        term = SUBJECTS.appends(3, terms_in(SUBJECTS, json.loads(answer.data)["config"])[3])
        for tail, body, headers in messages:
            subject = f"{term.removesuffix('>')}{tail}"
            stored = await client.request(subject, body, headers=headers or None)
            assert "seq" in json.loads(stored.data), tail
    finally:
        await client.close()


async def runs(url: str, *sessions: str) -> list[Any]:
    async with Client(url) as client:
        return [(await client.run(session, "1 + 1")).result for session in sessions]


def test_a_journal_with_foreign_messages_is_served_listed_verified_and_exported(tmp_path: Path):
    store = str(tmp_path / "store")
    flags = ("--store", store, "--driver", "sandbox", "--metrics-port", "0")
    with NodeProcess(tmp_path, *flags) as node:
        assert asyncio.run(runs(node.url, "a")) == [2]
        asyncio.run(poison(node.url_for(Role.NODE)))
        assert asyncio.run(runs(node.url, "a", "b")) == [2, 2]
        node.stop()

    def cli(*words: str) -> Said:
        return rookery_here(tmp_path, *words, "--store", store)

    with NodeProcess(tmp_path, *flags) as node:
        assert asyncio.run(runs(node.url, "a", "c")) == [2, 2]
        broken = {name for name, probe in node.probes()[1].items() if not probe["ok"]}
        assert broken == {"approvers"}, "no signed answer is valid until that is clear"
        for words in ("runs list", "sessions list", "approvals list", "nodes list", "journal tail"):
            assert cli(*words.split()).code == 0, words
        approvers = cli("approvers", "list")
        assert (approvers.code, "CHAIN_BROKEN: message" in approvers.err) == (0, True)
        refused = cli("run", "-e", "1", "--session", "poisoned")
        assert (refused.code, refused.err.partition(":")[0]) == (1, "CHAIN_BROKEN")
        found = cli("journal", "verify")
        assert found.code == 1
        assert f"and {len(FOREIGN) - 1} more" in found.err
        for entity in ("approval/_approvers", "nosuch/key", "session/poisoned", "foreign/x"):
            assert entity in found.err
        export = str(tmp_path / "export")
        assert cli("journal", "export", export).code == 0
        checked = cli("journal", "verify", export)
        assert (checked.code, "approval/_approvers" in checked.err) == (1, True)


async def lay_older_journal(server: EmbeddedServer) -> None:
    """The streams of that version, with its messages."""
    connection = Connection(server.admin_url)
    await connection.open()
    try:
        await make_format_1(connection, SUBJECTS)
        for line in map(json.loads, OLDER_JOURNAL.read_text().splitlines()):
            headers = list(line["headers"].items())
            message = Outgoing(line["subject"], line["body"].encode(), headers=headers)
            stored = await connection.request(message)
            assert json.loads(stored.body)["seq"] == line["sequence"]
    finally:
        await connection.close()


def poison_in(found: Said) -> set[tuple[int, str, str]]:
    damaged = json.loads(found.out)["damaged"]
    return {(one["sequence"], one["entity"], one["code"]) for one in damaged}


def test_a_poisoned_store_of_an_older_version_is_served_listed_verified_and_exported(
    tmp_path: Path,
):
    store = tmp_path / "store"
    with EmbeddedServer(store, sync="default", admin=True) as server:
        asyncio.run(lay_older_journal(server))

    def cli(*words: str) -> Said:
        return rookery_here(tmp_path, *words, "--store", str(store))

    flags = ("--store", str(store), "--driver", "sandbox", "--metrics-port", "0")
    with NodeProcess(tmp_path, *flags) as node:
        assert "upgraded from format 1" in node.log.read_text()
        assert asyncio.run(runs(node.url, "new")) == [2]
        broken = {name for name, probe in node.probes()[1].items() if not probe["ok"]}
        assert broken == {"approvers"}
        for words in ("runs list", "sessions list", "approvals list", "nodes list"):
            assert cli(*words.split()).code == 0, words
        listed = cli("runs", "list").out
        assert all(name in listed for name in ("ledger", "desk", "script", "new"))
        assert value(scrape(node), "rookery_journal_skipped") == len(OLDER_POISON)
        assert "mallory" in cli("approvers", "list").out, "with nothing that signs it"
        for session, code in (("poisoned", "FACT_UNKNOWN"), ("desk", "FACT_INVALID")):
            refused = cli("run", "-e", "1", "--session", session)
            assert (refused.code, refused.err.partition(":")[0]) == (1, code)
        found = cli("journal", "verify", "--json")
        assert (found.code, poison_in(found)) == (1, OLDER_POISON)
        set_aside = ("journal", "quarantine", "28", "--reason", "junk", "--confirm", "foreign/x")
        assert cli(*set_aside).code == 0
        export = str(tmp_path / "export")
        assert cli("journal", "export", export).code == 0
        checked = cli("journal", "verify", "--json", export)
        assert poison_in(checked) == {one for one in OLDER_POISON if one[0] != 28}
        node.stop()
