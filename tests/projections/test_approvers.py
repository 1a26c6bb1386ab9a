"""The approvers a node knows: those that were added and not revoked, by any node.

A node that may have missed a revocation knows none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.keys.ed25519 import key_id_of
from rookery.actors.projections.trust import Approvers
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import Bus
from rookery.schemas.codec import encode_facts
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.facts import approval
from tests.bus.journals import Writer, commit
from tests.bus.realms import JetStreamRealm
from tests.stock_client import until

ANN, BOB = Signer(b"a" * 32), Signer(b"b" * 32)
ENTITY = EntityId("approval", APPROVERS_KEY)
STREAM = "ROOKERY_default_JOURNAL"
OF_A_NEWER_VERSION = b'[{"type":"approval.approver_noted.v1","id":"x","at_ms":1}]'


def added(name: str, signer: Signer) -> approval.ApproverAdded:
    return approval.ApproverAdded(name=name, key_id=signer.key_id, public_key=signer.public_key)


ADDED = added("ann", ANN)
REVOKED = approval.ApproverRevoked(name="ann", key_id=ANN.key_id)


class ApproverWriter:
    """Another node that appends facts about approvers."""

    def __init__(self, bus: Bus, name: str = "writer") -> None:
        self._bus, self._writer = bus, Writer(name)

    async def append(self, *facts: approval.ApprovalFact) -> int:
        return await self.write(encode_facts(facts))

    async def write(self, body: bytes) -> int:
        """The sequence of the message."""
        self._writer.learn(await commit(self._bus.journal, [self._writer.next(ENTITY, body)]))
        return self._writer.ends[ENTITY][0]


@asynccontextmanager
async def in_memory() -> AsyncIterator[Bus]:
    bus = MemoryBus(MemoryServer(lambda: 0))
    await bus.start()
    yield bus
    await bus.stop()


@asynccontextmanager
async def following(approvers: Approvers) -> AsyncIterator[None]:
    await approvers.refresh()
    task = asyncio.create_task(approvers.run())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_key_counts_from_when_it_is_added_until_it_is_revoked():
    async def story() -> None:
        async with in_memory() as bus:
            writer, approvers = ApproverWriter(bus), Approvers(bus)
            await writer.append(ADDED)
            assert approvers.approver_of(ANN.key_id) is None
            async with following(approvers):
                known = approvers.approver_of(ANN.key_id)
                assert known is not None
                assert (known.name, key_id_of(known.public_key)) == ("ann", ANN.key_id)
                await writer.append(REVOKED)
                await until(lambda: approvers.approver_of(ANN.key_id) is None)
                await writer.append(ADDED)
                await until(lambda: approvers.approver_of(ANN.key_id) is not None)
                assert approvers.unavailable_reason == ""

    asyncio.run(story())


def test_no_key_is_valid_after_an_unreadable_fact(
    caplog: pytest.LogCaptureFixture,
):
    async def story() -> None:
        async with in_memory() as bus:
            writer, approvers = ApproverWriter(bus), Approvers(bus)
            await writer.append(ADDED)
            async with following(approvers):
                await writer.write(OF_A_NEWER_VERSION)
                await writer.append(REVOKED)
                await writer.append(added("bob", BOB))
                await until(lambda: approvers.approver_of(ANN.key_id) is None)
                assert approvers.approver_of(BOB.key_id) is None
                assert approvers.unavailable_reason == "FACT_UNKNOWN"
            with pytest.raises(Failed, match="FACT_UNKNOWN"):  # Nor does a node start with it.
                await Approvers(bus).refresh()

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert [record.message for record in caplog.records] == [
        "approvers unavailable, no signed answer is valid"
    ]


@pytest.fixture
def jetstream(tmp_path: Path):
    realm = JetStreamRealm(tmp_path / "store")
    with realm.server:
        yield realm


async def _loosened(realm: JetStreamRealm) -> None:
    """Another stream in the journal's place, one that lets messages be removed."""
    info = await realm.api(f"STREAM.INFO.{STREAM}")
    await realm.api(f"STREAM.DELETE.{STREAM}")
    loose = info["config"] | {"deny_delete": False, "deny_purge": False}
    await realm.api(f"STREAM.CREATE.{STREAM}", loose)


def test_no_key_is_valid_if_facts_were_removed(jetstream: JetStreamRealm):
    """It may have been the revocation."""

    async def story() -> None:
        async with jetstream.bus() as bus:
            await _loosened(jetstream)
            writer, approvers = ApproverWriter(bus), Approvers(bus)
            await writer.append(ADDED)
            revoked = await writer.append(REVOKED)
            await writer.append(added("bob", BOB))
            await jetstream.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": revoked})
            with pytest.raises(Failed, match="CHAIN_BROKEN"):
                await approvers.refresh()
            assert approvers.approver_of(ANN.key_id) is None

    asyncio.run(story())
