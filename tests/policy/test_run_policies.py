"""The policies that a node has in memory for its runs."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from rookery.actors.policy import RunPolicies
from rookery.actors.policy.run_policies import POLICIES_MAX
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.schemas.errors import Failed
from rookery.schemas.protection.policy import (
    PolicySettings,
    RuleDecision,
    encode_policy,
)


def settings(number: int) -> PolicySettings:
    return PolicySettings(undeclared=RuleDecision.ASK, network={"local": (f"{number}.example",)})


async def stored(number: int) -> tuple[RunPolicies, list[str]]:
    """A node without a policy of its own, and the digests of stored ones."""
    blobs = MemoryBus(MemoryServer(lambda: 0)).blobs
    digests = [await blobs.put(encode_policy(settings(one))) for one in range(number)]
    return RunPolicies(blobs), digests


def test_the_policies_that_were_used_last_are_in_memory():
    async def scenario() -> None:
        policies, digests = await stored(POLICIES_MAX + 1)
        for digest in digests[:-1]:
            await policies.load(digest)
        await policies.load(digests[0])
        await policies.load(digests[-1])
        assert policies.get(digests[0]).settings == settings(0)
        with pytest.raises(Failed, match="not loaded"):
            policies.get(digests[1])

    asyncio.run(scenario())


def test_a_loaded_policy_is_there_for_actors_whenever_another_run_loads_it():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    policies, (digest,) = asyncio.run(stored(1))
    asyncio.run(policies.load(digest))
    ended, missing = threading.Event(), list[Failed]()

    def read() -> None:
        while not ended.is_set():
            try:
                policies.get(digest)
            except Failed as failure:
                missing.append(failure)

    async def load_often() -> None:
        for _ in range(3_000):
            await policies.load(digest)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        asyncio.run(load_often())
    finally:
        ended.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert not missing
