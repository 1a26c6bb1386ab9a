"""Foreign messages in the journal: a holder of the server's credential published them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects
from tests.nodes import NodeProcess, Said, rookery_here
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
WITHOUT_CHAIN = 6
"""Those under an entity; a scan of facts does not select the others."""


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
        assert f"and {WITHOUT_CHAIN - 1} more" in found.err
        for entity in ("approval/_approvers", "nosuch/key", "session/poisoned", "node/x"):
            assert entity in found.err
        export = str(tmp_path / "export")
        assert cli("journal", "export", export).code == 0
        checked = cli("journal", "verify", export)
        assert (checked.code, "approval/_approvers" in checked.err) == (1, True)
