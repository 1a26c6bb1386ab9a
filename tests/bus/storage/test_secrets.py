"""A realm's nodes share one secret per name, created by the first."""

from __future__ import annotations

import asyncio

from tests.bus.realms import Realm


def test_the_first_proposal_is_stored_for_all_nodes(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            proposals = (
                first.secrets.get_or_create("sandbox", b"one"),
                second.secrets.get_or_create("sandbox", b"two"),
            )
            stored = await asyncio.gather(*proposals)
            assert stored[0] == stored[1]
            assert stored[0] in (b"one", b"two")
            assert await second.secrets.get_or_create("sandbox", b"three") == stored[0]
            assert await first.secrets.get_or_create("other.name", b"three") == b"three"

    asyncio.run(scenario())
