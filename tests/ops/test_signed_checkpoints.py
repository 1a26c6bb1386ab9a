"""What a node signs: all it has appended, nothing of others, and nothing while it is idle."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.runtime import NodeDecider
from rookery.actors.keys.checkpoints import (
    CheckpointWriter,
    checkpoint_bytes,
    checkpoint_digest,
    head_path,
    heads_root,
)
from rookery.actors.keys.ed25519 import SigningKey, is_valid_signature
from rookery.bus.ports import AppendRequest, StoredMessage
from rookery.ops.examples.run_proof import check_proof
from rookery.ops.examples.run_proof.check_proof import root_of
from rookery.ops.journal import DefectKind, JournalCheck
from rookery.ops.journal.anchor import Anchor
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId, Fact
from rookery.schemas.errors import Failed
from rookery.schemas.facts.node import Checkpoint, KeyVoucher, Started
from rookery.schemas.facts.session import Registered

KEY, REALM, NODE = SigningKey(b"n" * 32), "r", "n1"


class Journal:
    """What one node appends; its checkpoints are appended at once."""

    def __init__(
        self, key: SigningKey | None = KEY, voucher: KeyVoucher | UnsetType = UNSET
    ) -> None:
        self.messages: list[StoredMessage] = []
        self._ends: dict[EntityId, str] = {}
        self.writer = CheckpointWriter(NODE, REALM, key, self._record)
        self.refuse = False
        self.start(NODE, key or KEY, voucher)

    def start(self, node: str, key: SigningKey, voucher: KeyVoucher | UnsetType = UNSET) -> None:
        """A node says that it started, with this key."""
        started = Started(
            node=node,
            version="1",
            host="h",
            pid=1,
            durability="always",
            public_key=key.public_key,
            voucher=voucher,
            source=f"kernel@{node}",
        )
        self.append(EntityId("node", node), started)

    def append(self, entity: EntityId, fact: Fact, *, reported: bool = True) -> AppendRequest:
        """Store a message; the writer gets its ack, unless that is lost."""
        body, sequence = encode_facts([fact]), len(self.messages) + 1
        digest = self._ends[entity] = chain(self._ends.get(entity, ZERO_CHAIN), body)
        self.messages.append(StoredMessage(sequence, entity, f"m{sequence}", digest, body, 1))
        append = AppendRequest(entity, 0, f"m{sequence}", body, digest)
        if reported:
            self.writer.add(append, sequence, [fact])
        return append

    def work(self, *keys: str, source: str = f"session@{NODE}", reported: bool = True) -> None:
        for key in keys:
            fact = Registered(
                row="RegisterSession", session_id_in=f"{len(self.messages)}", source=source
            )
            self.append(EntityId("session", key), fact, reported=reported)

    async def _record(self, fact: Fact) -> None:
        if self.refuse:
            raise Failed("JOURNAL_FULL", "no room")
        self.append(EntityId("node", NODE), fact)

    def write(self) -> None:
        asyncio.run(self.writer.write(_settled))

    def checked(
        self, root_key: str = "", issuer: str = "", anchor: Anchor | None = None
    ) -> JournalCheck:
        check = JournalCheck(realm=REALM, root_key=root_key, issuer=issuer, anchor=anchor)
        for stored in self.messages:
            check.add(stored)
        check.finish()
        return check


async def _settled() -> None:
    """Nothing is in flight."""


def kinds(journal: Journal) -> list[DefectKind]:
    return [one.kind for one in journal.checked().damaged]


def test_an_idle_node_and_one_without_a_key_sign_nothing():
    for key in (KEY, None):
        journal = Journal(key)
        journal.write()
        before = len(journal.messages)
        for _ in range(3):
            journal.write()
        assert len(journal.messages) == before == (2 if key else 1)


def test_every_message_of_the_node_is_signed_once():
    journal = Journal()
    for keys in ("abc", "a", "", "cab" * 5):
        journal.work(*keys)
        journal.write()
    check = journal.checked()
    assert check.damaged == []
    assert check.checkpoints is not None
    assert (check.checkpoints.proven, check.checkpoints.checkpoints) == (1 + 3 + 1 + 15, 3)
    assert check.checkpoints.unproven == []


def test_a_checkpoint_that_is_refused_is_made_up_for_by_the_next_one():
    journal = Journal()
    journal.work("a", "b")
    journal.refuse = True
    journal.write()
    journal.refuse = False
    journal.work("a")
    journal.write()
    check = journal.checked()
    assert check.damaged == []
    assert check.checkpoints is not None
    assert check.checkpoints.proven == 4


def test_appends_that_are_acknowledged_while_a_checkpoint_is_made_are_signed_once():
    journal = Journal()
    journal.work("a")
    late = journal.append(
        EntityId("session", "b"),
        Registered(row="RegisterSession", session_id_in="x", source=f"s@{NODE}"),
        reported=False,
    )
    place = len(journal.messages)
    journal.work("c")

    async def settle() -> None:
        """The append before the newest is acknowledged after it, and one more is made."""
        journal.writer.add(late, place, [Registered(row="RegisterSession", session_id_in="x")])
        journal.work("d")

    asyncio.run(journal.writer.write(settle))
    journal.write()
    check = journal.checked()
    assert check.damaged == []
    assert check.checkpoints is not None
    assert check.checkpoints.unproven == []


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_append_of_unknown_outcome_is_no_defect_either_way(is_stored: bool):
    journal = Journal()
    fact = Registered(row="RegisterSession", session_id_in="x", source=f"session@{NODE}")
    entity = EntityId("session", "a")
    body = encode_facts([fact])
    append = AppendRequest(entity, 0, "m", body, chain(ZERO_CHAIN, body))
    if is_stored:
        append = journal.append(entity, fact, reported=False)
    journal.work("b")
    journal.writer.add_uncertain(append)
    journal.write()
    assert kinds(journal) == []


def test_a_message_in_the_nodes_name_that_it_did_not_append_is_found():
    journal = Journal()
    journal.work("a", "b")
    journal.work("a", reported=False)
    journal.work("a")
    journal.write()
    assert kinds(journal) == [DefectKind.HISTORY]


def test_messages_of_a_killed_node_are_not_signed_and_the_next_life_goes_on():
    journal = Journal()
    journal.work("a")
    journal.write()
    journal.work("a", "b")
    journal.writer = CheckpointWriter(NODE, REALM, KEY, journal._record)
    journal.work("a")
    journal.write()
    check = journal.checked()
    assert check.damaged == []
    assert check.checkpoints is not None
    (unproven,) = check.checkpoints.unproven
    assert (unproven.messages, unproven.reason) == (2, "the node ended without a last checkpoint")


def test_messages_of_a_node_that_never_started_are_forged():
    journal = Journal()
    journal.work("a")
    journal.write()
    journal.work("b", source="session@ghost", reported=False)
    journal.work("c", source="", reported=False)
    assert kinds(journal) == [DefectKind.FORGED, DefectKind.FORGED]


@given(st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=20))
def test_every_head_leads_to_the_root_and_no_other_does(names: set[str]):
    heads = [(EntityId("turn", name), chain(ZERO_CHAIN, name.encode())) for name in names]
    root = heads_root(heads)
    for entity, digest in heads:
        path = head_path(heads, entity)
        assert root_of({"entity": str(entity), "chain": digest, "path": path}) == root
        other = chain(digest, b"")
        assert root_of({"entity": str(entity), "chain": other, "path": path}) != root


def test_a_proof_is_checked_by_100_lines_of_code_without_an_import_of_ours():
    text = Path(check_proof.__file__).read_text()
    parts = list(ast.walk(ast.parse(text)))
    imported = {one.module for one in parts if isinstance(one, ast.ImportFrom)}
    imported |= {name.name for one in parts if isinstance(one, ast.Import) for name in one.names}
    assert not [name for name in imported if str(name).startswith("rookery")]
    words = {
        line
        for one in parts
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
        for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)
    }
    code = [
        line
        for number, line in enumerate(text.splitlines(), 1)
        if number not in words and line.strip() and not line.strip().startswith("#")
    ]
    assert len(code) <= 100


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node", "n2"),
        ("number", 2),
        ("start", 9),
        ("sequence", 9),
        ("messages", 9),
        ("root", "0"),
        ("previous", "0"),
        ("uncertain", ("0",)),
        ("key_id", "0"),
    ],
)
def test_the_signature_covers_every_field(field: str, value: Any):
    journal = Journal()
    journal.write()
    fact = _checkpoints(journal.messages)[0]
    fields = {name: getattr(fact, name) for name in Checkpoint.__struct_fields__}
    changed = Checkpoint(**(fields | {field: value}))
    assert is_valid_signature(checkpoint_bytes(REALM, fact), fact.signature, KEY.public_key)
    for realm, one in ((REALM, changed), ("other", fact)):
        signed = checkpoint_bytes(realm, one)
        assert not is_valid_signature(signed, fact.signature, KEY.public_key)
    assert checkpoint_digest(REALM, changed) != checkpoint_digest(REALM, fact)


def _checkpoints(messages: Sequence[StoredMessage]) -> list[Checkpoint]:
    of_nodes = [stored for stored in messages if stored.entity.family == "node"]
    facts = [fact for stored in of_nodes for fact in NodeDecider.codec.decode(stored.body)]
    return [fact for fact in facts if isinstance(fact, Checkpoint)]
