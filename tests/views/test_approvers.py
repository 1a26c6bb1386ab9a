"""The approvers a node knows: those that were added and not revoked, wherever it was said."""

from __future__ import annotations

import asyncio

from rookery.actors.approvals.signing import Signer, key_id_of
from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.views.approvers import Approvers
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import Append
from rookery.schemas.codec import encode_facts
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts import approval
from tests.stock import until

ANN = Signer(b"a" * 32)
ADDED = approval.ApproverAdded(name="ann", key_id=ANN.key_id, public_key=ANN.public_key)
REVOKED = approval.ApproverRevoked(name="ann", key_id=ANN.key_id)
ENTITY = EntityId("approval", APPROVERS_KEY)


def test_a_key_counts_from_when_it_is_added_until_it_is_revoked():
    async def story() -> None:
        bus = MemoryBus(MemoryServer(lambda: 0))
        await bus.start()
        written: list[int] = [0]

        def write(*facts: approval.ApprovalFact) -> None:
            append = Append(
                entity=ENTITY,
                expected=written[-1],
                message_id=f"m{len(written)}",
                body=encode_facts(facts),
                chain="",
            )
            bus.journal.append([append], lambda told: written.append(told[0].sequence))

        write(ADDED)
        await until(lambda: len(written) == 2)
        approvers = Approvers(bus)
        assert approvers.find(ANN.key_id) is None
        await approvers.refresh()
        known = approvers.find(ANN.key_id)
        assert known is not None
        assert (known.name, key_id_of(known.public_key)) == ("ann", ANN.key_id)
        following = asyncio.create_task(approvers.keep_up())
        write(REVOKED)
        await until(lambda: approvers.find(ANN.key_id) is None)
        write(ADDED)
        await until(lambda: approvers.find(ANN.key_id) is not None)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await bus.stop()

    asyncio.run(story())
