"""A node begins an attempt once, and bounds the results that are not committed."""

from __future__ import annotations

import asyncio

from rookery.actors.tools.attempts.attempts import OVERHEAD_BYTES, AttemptCache, AttemptResult
from rookery.actors.tools.attempts.call_slots import CallAttempt
from rookery.schemas.calls import CallOutcome

TEXT = b"x" * OVERHEAD_BYTES
PLACES = [CallAttempt(f"o{number}", 1) for number in range(4)]


def test_uncommitted_results_are_evicted_and_their_attempts_not_repeated():
    async def scenario() -> None:
        tries, gate = AttemptCache(held_bytes_max=4 * OVERHEAD_BYTES), asyncio.Event()

        async def work() -> AttemptResult:
            await gate.wait()
            return AttemptResult(CallOutcome(), TEXT)

        begun = [tries.begin(place, work()) for place in PLACES[:3]]
        gate.set()
        await asyncio.gather(*begun)
        gate.clear()
        going = tries.begin(PLACES[3], work())
        found = [tries.get(place) for place in PLACES]
        assert found[1:] == [*begun[1:], going]
        assert found[0] is not None
        assert (found[0].result().text, bool(found[0].result().unknown_reason)) == (b"", True)
        tries.confirm(PLACES[1])
        gate.set()
        assert (await going).text == TEXT
        assert tries.get(PLACES[1]) is None
        assert [tries.get(place) for place in PLACES[2:]] == [begun[2], going]

    asyncio.run(scenario())
