"""A realm's nodes share one secret a name, whoever comes first."""

from __future__ import annotations

import asyncio

from tests.bus.realms import Realm


def test_the_first_proposal_stands_for_everybody(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            proposals = (
                first.secrets.get_or_create("sandbox", b"one"),
                second.secrets.get_or_create("sandbox", b"two"),
            )
            told = await asyncio.gather(*proposals)
            assert told[0] == told[1]
            assert told[0] in (b"one", b"two")
            assert await second.secrets.get_or_create("sandbox", b"three") == told[0]
            assert await first.secrets.get_or_create("other.name", b"three") == b"three"

    asyncio.run(scenario())
