"""The policies that a node has in memory for its runs."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from rookery.actors.policy import RunPolicies
from rookery.actors.policy.decision import POLICIES_MAX
from rookery.actors.tools import ToolRegistry
from rookery.actors.tools.builtin import built_in_tools, peer_tools
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import Delivery
from rookery.ops.run_environment import PolicyServices
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.protection.policy import (
    ExplainPolicy,
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


def test_what_only_waits_is_explained_as_it_is_decided():
    denying = PolicySettings(default=RuleDecision.DENY, undeclared=RuleDecision.DENY)
    policies = RunPolicies(MemoryBus(MemoryServer(lambda: 0)).blobs, denying)
    none = ToolRegistry.of()
    services = PolicyServices(policies, ToolCatalogue((*built_in_tools(none), *peer_tools(none))))

    def explained(name: str) -> RuleDecision:
        body = encode_json(ExplainPolicy(tool=name))
        delivery = Delivery(verb="policy", key="all", id="1", body=body)
        return asyncio.run(services.explain(delivery)).decision

    assert explained("sleep") is explained("receive") is RuleDecision.ALLOW
    assert explained("send_message") is RuleDecision.DENY


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
