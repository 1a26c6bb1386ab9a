"""A live node skips what a forger with a node's credential writes, and every command says so; and
nodes with keys of their own sign one journal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.bus import connect_sync
from rookery.bus.journal import JetStreamJournal
from rookery.bus.journal.reader import CHAIN
from rookery.bus.nats.connection import Connection
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects, partition_of
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts.approval import ApproverAdded
from tests.approvals.approval_world import EVE, ApprovalWorld
from tests.nodes import access_to, node_on, rookery_here

APPROVERS = EntityId("approval", APPROVERS_KEY)


async def publish(server: EmbeddedServer, realm: str, entity: EntityId, facts: list[Fact]) -> None:
    """Append with the node's credential and the node's own term."""
    connection = Connection(server.url_for(Role.NODE, realm=realm))
    await connection.open()
    try:
        subjects = Subjects(realm)
        journal = JetStreamJournal(connection, subjects)
        last = await journal.last(entity)
        assert last is not None
        config = (await connection.api(f"STREAM.INFO.{subjects.journal_stream}"))["config"]
        partition = partition_of(entity.key)
        term = subjects.appends(partition, terms_in(subjects, config)[partition])
        body = encode_facts(facts)
        headers = {CHAIN: chain(last.chain, body)}
        subject = f"{term.removesuffix('>')}{entity.family}.{entity.key}"
        stored = await connection.client.request(subject, body, headers=headers, timeout=10)
        assert "seq" in json.loads(stored.data)
    finally:
        await connection.close()


def test_a_live_node_skips_a_forged_approver_and_says_so(server: EmbeddedServer, tmp_path: Path):
    realm = "forged-live"
    world = ApprovalWorld(server, realm, tmp_path)
    eve = ApproverAdded(
        name="eve", key_id=EVE.key_id, public_key=EVE.public_key, source="approval@n1"
    )

    async def scenario() -> None:
        async with world:
            await world.name_approvers()
            await publish(server, realm, APPROVERS, [eve])
            parked = await world.parked("s")
            forged = world.signed(parked.answer(actor="eve"), EVE)
            assert await world.refused("s", msgspec.to_builtins(forged)) == "APPROVER_UNKNOWN"
            await world.accepted(parked, world.signed(parked.answer()))

    with world.node(ROOKERY_NODE_NAME="n1") as node:
        asyncio.run(scenario())
        node.stop()
    store = access_to(server, realm)
    listed = rookery_here(tmp_path, "approvers", "list", *store)
    assert (listed.code, "eve" in listed.out) == (1, False)
    assert "says that eve was added" in listed.err
    verified = rookery_here(tmp_path, "journal", "verify", *store)
    assert (verified.code, "the change of approver eve is forged" in verified.err) == (7, True)


def test_two_nodes_with_key_files_of_their_own_sign_one_journal(
    server: EmbeddedServer, tmp_path: Path
):
    """Both at once, and the second goes on when the first has stopped."""
    realm = "two-keys"
    folders = [tmp_path / name for name in ("n1", "n2")]
    for folder in folders:
        folder.mkdir()
    first, second = (
        node_on(server, realm, folder, "--driver", "sandbox", ROOKERY_NODE_NAME=folder.name)
        for folder in folders
    )
    with (
        first,
        second,
        connect_sync(server.url_for(Role.CLIENT, realm=realm), realm=realm) as client,
    ):
        assert [client.run(f"s{number}", "1").result for number in range(6)] == [1] * 6
        assert first.stop() == 0
        assert [client.run(f"s{number}", "2").result for number in range(6)] == [2] * 6
        assert second.stop() == 0
    keys = [path.read_text() for path in sorted(tmp_path.glob(f"n*/**/{realm}.node.pem"))]
    assert len(set(keys)) == 2
    verified = rookery_here(tmp_path, "journal", "verify", "--json", *access_to(server, realm))
    signed = json.loads(verified.out)["signed"]
    assert (verified.code, signed["unproven"]) == (0, [])
    assert sorted(key["nodes"] for key in signed["keys"]) == [["n1"], ["n2"]]
