"""A live node skips what a forger with a node's credential writes, and every command says so; and
nodes with keys of their own sign one journal, which an auditor checks by commands alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.bus import connect_sync
from rookery.bus.journal import JetStreamJournal
from rookery.bus.journal.reader import CHAIN
from rookery.bus.nats.connection import Connection
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects, partition_of
from rookery.ops.examples.run_proof import check_proof
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.facts.approval import ApproverAdded, GrantRevoked
from rookery.schemas.facts.session import Registered
from tests.approvals.approval_world import EVE, ApprovalWorld
from tests.nodes import access_to, node_on, rookery_here

APPROVERS = EntityId("approval", APPROVERS_KEY)
HERE = Path(__file__).parents[2]
REALM = "two-keys"


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
        stored = await connection.client.request(subject, body, headers=headers, timeout=90)
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


def test_a_forged_revocation_is_named_by_the_doctor_and_the_list_of_grants(
    server: EmbeddedServer, tmp_path: Path
):
    realm = "forged-grant"
    world = ApprovalWorld(server, realm, tmp_path)

    async def scenario() -> str:
        async with world:
            await world.name_approvers()
            parked = await world.parked("s")
            await world.accepted(parked, world.signed(parked.answer()))
            return f"grant.{parked.approval.approval_id}"

    with world.node(ROOKERY_NODE_NAME="n1") as node:
        grant = asyncio.run(scenario())
        node.stop()
    store = access_to(server, realm)

    def named() -> list[tuple[int, bool]]:
        listed = rookery_here(tmp_path, "approvals", "grants", "list", "--all", *store)
        assert grant in listed.out
        found = rookery_here(tmp_path, "doctor", *store)
        text = f"the revocation of {grant} is forged: it is not signed"
        return [(one.code, text in one.out + one.err) for one in (listed, found)]

    assert named() == [(0, False), (0, False)]
    revoked = GrantRevoked(grant_id=grant, revoked_by="ann", source="approval@n1")
    asyncio.run(publish(server, realm, EntityId("approval", "s"), [revoked]))
    assert named() == [(1, True), (1, True)]


@pytest.fixture(scope="module")
def signed(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``early.jsonl`` and ``whole.jsonl``, exports of a realm of two nodes: both at
    once, and the second went on when the first had stopped."""
    root = tmp_path_factory.mktemp(REALM)
    folders = [root / name for name in ("n1", "n2")]
    for folder in folders:
        folder.mkdir()
    flags = ("--driver", "sandbox", "--tools", "tests.execution.tools:registry")
    first, second = (
        node_on(server, REALM, folder, *flags, ROOKERY_NODE_NAME=folder.name, PYTHONPATH=str(HERE))
        for folder in folders
    )
    store = access_to(server, REALM)
    with (
        first,
        second,
        connect_sync(server.url_for(Role.CLIENT, realm=REALM), realm=REALM) as client,
    ):
        assert [client.run(f"s{number}", "1").result for number in range(6)] == [1] * 6
        assert first.stop() == 0
        assert rookery_here(root, "journal", "export", "early.jsonl", *store).code == 0
        assert [client.run(f"s{number}", "2").result for number in range(6)] == [2] * 6
        assert second.stop() == 0
    assert "approvals need no signature" in first.log.read_text()
    assert rookery_here(root, "journal", "export", "whole.jsonl", *store).code == 0
    return root


def test_two_nodes_with_key_files_of_their_own_sign_one_journal(
    server: EmbeddedServer, signed: Path
):
    keys = [path.read_text() for path in sorted(signed.glob(f"n*/**/{REALM}.node.pem"))]
    assert len(set(keys)) == 2
    verified = rookery_here(signed, "journal", "verify", "--json", *access_to(server, REALM))
    found = json.loads(verified.out)["signed"]
    assert (verified.code, found["unproven"]) == (0, [])
    assert sorted(key["nodes"] for key in found["keys"]) == [["n1"], ["n2"]]


def test_an_auditor_without_a_server_finds_what_is_missing_or_changed(
    server: EmbeddedServer, signed: Path
):
    """By the exit codes that the guide lists."""
    anchored = rookery_here(signed, "journal", "anchor", "anchor.json", *access_to(server, REALM))
    assert anchored.code == 0, anchored.err
    whole = (signed / "whole.jsonl").read_bytes()
    (signed / "changed.jsonl").write_bytes(whole.replace(b"at_ms", b"at_mz", 1))
    flags = ("--anchor", "anchor.json", "--realm", REALM)
    sound, early, changed = (
        rookery_here(signed, "journal", "verify", f"{name}.jsonl", *flags)
        for name in ("whole", "early", "changed")
    )
    assert (sound.code, early.code, changed.code) == (0, 7, 8)
    assert "HISTORY" in early.err
    assert "was changed after the export" in changed.err


def test_a_run_is_proven_by_a_script_of_its_own(server: EmbeddedServer, signed: Path):
    store = access_to(server, REALM)
    listed = rookery_here(signed, "runs", "list", "--json", "--session", "s1", *store)
    run = json.loads(listed.out)["runs"][0]["run_id"]
    proven = rookery_here(signed, "runs", "prove", run, "proof.jsonl", *store)
    assert proven.code == 0, proven.err
    proof = (signed / "proof.jsonl").read_bytes()
    (signed / "changed-proof.jsonl").write_bytes(proof.replace(b"at_ms", b"at_mz", 1))
    script = (sys.executable, "-I", check_proof.__file__)
    checked, changed = (
        subprocess.run(
            [*script, signed / name], capture_output=True, text=True, timeout=60, check=False
        )
        for name in ("proof.jsonl", "changed-proof.jsonl")
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"facts of run {run}" in checked.stdout
    number = 1 + proof[: proof.index(b"at_ms")].count(b"\n")
    assert (changed.returncode, f"line {number} was changed" in changed.stderr) == (1, True)


def test_a_message_in_the_name_of_no_node_is_forged(server: EmbeddedServer, signed: Path):
    """After all others, so that no checkpoint could have covered it."""
    fact = Registered(row="RegisterSession", session_id_in="x", source="session@ghost")
    asyncio.run(publish(server, REALM, EntityId("session", "s1"), [fact]))
    verified = rookery_here(signed, "journal", "verify", *access_to(server, REALM))
    assert (verified.code, "ghost, which never started" in verified.err) == (6, True)
