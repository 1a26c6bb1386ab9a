"""Calls of tools with a credential: what follows a refusal by the service, and a lost answer.

``Issuer`` is what is outside of every node: it issues credentials, and the tools' backend accepts
or refuses them.
"""

from __future__ import annotations

import pytest

from rookery.actors.leases.provider import CurrentCredential, LeaseCredential
from rookery.actors.tools import ToolCredential
from rookery.actors.tools.functions.remote_host import RemoteToolHost
from rookery.bus.memory.workers import MemoryToolWorkers, MemoryWorkerEndpoint
from rookery.schemas.calls import Capability
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.surfaces import catalogue_name
from rookery.schemas.worker_protocol import Job, JobAnswer, ServedTool, WorkerCatalogue
from tests.tools.tool_fixtures import SURFACE, ToolNode, ToolWorld, call, capability

FIRST = "canary-1-4f0c9b27d6e1"
READ = capability("read", binding="mail")
SEND = capability("send", binding="mail", idempotent=False, timeout_ms=50_000)


class Issuer:
    """Issues one credential."""

    def __init__(self) -> None:
        self.refused, self.has_deleted = list[int](), False

    async def get(self, binding: str) -> CurrentCredential:
        return CurrentCredential(LeaseCredential(value=FIRST), 1)

    async def get_past(self, binding: str, since_ms: int) -> tuple[CurrentCredential, ...]:
        if self.has_deleted:
            raise Failed("LEASE_UNAVAILABLE", "an older credential was deleted")
        return (await self.get(binding),)

    async def reject(self, binding: str, generation: int) -> None:
        self.refused.append(generation)


def given(world: ToolWorld) -> list[str]:
    """The credentials that the tool got, in order."""
    credentials = [ctx.credential for ctx in world.backend.contexts]
    return [one.value for one in credentials if isinstance(one, ToolCredential)]


@pytest.mark.parametrize("tool", [READ, SEND], ids=["idempotent", "not idempotent"])
def test_a_call_whose_credential_is_refused_fails_and_is_not_made_again(
    world: ToolWorld, tool: Capability
):
    """Whatever its function returns: it may have acted before the refusal."""
    issuer = Issuer()
    world.begin(tool, credentials=issuer)
    world.backend.refused = {FIRST}
    world.request_calls(call(1, tool.name, a=1))
    world.until(lambda: world.kinds()[-1] == "failed")
    error = world.tool_facts(1)[-1].error
    assert error.code == "CREDENTIAL_REJECTED"
    assert "the lease mail, which is refreshed now" in error.message
    assert world.kinds() == ["requested", "intent_recorded", "failed"]
    assert (given(world), issuer.refused) == ([FIRST], [1])


@pytest.mark.parametrize("has_deleted", [False, True])
def test_the_answer_of_a_past_attempt_is_scrubbed_or_not_read(world: ToolWorld, has_deleted: bool):
    """A worker in another language answers with the credential, after its node has died."""
    issuer, jobs = Issuer(), list[Job]()
    issuer.has_deleted = has_deleted
    registry = world.server.realm("default").worker_registry
    endpoint = MemoryWorkerEndpoint(registry, SURFACE)
    served = ServedTool(capability=SEND)
    catalogue = WorkerCatalogue(worker="anna", tools=(served,))
    world.run(endpoint.open(catalogue, jobs.append, lambda _: None))
    name = catalogue_name(SURFACE, "send")
    seen = capability(name, binding="mail", idempotent=False, timeout_ms=50_000)

    def begin() -> ToolNode:
        host = RemoteToolHost(MemoryToolWorkers(registry), SURFACE, {"send": served})
        return world.begin(seen, host=host, credentials=issuer)

    node = begin()
    world.request_calls(call(1, name, a=1))
    world.until(lambda: jobs)
    node.crash()
    assert jobs[0].credential is not None
    body = encode_json(JobAnswer(value=f"sent with {jobs[0].credential.value}"))
    world.run(endpoint.reply(jobs[0], body))
    begin()
    world.until(lambda: world.kinds()[-1] in ("completed", "recovery_required"))
    ended = world.tool_facts(1)[-1]
    if has_deleted:
        assert "may have a credential" in ended.reason
    else:
        assert ended.value == "sent with [credential]"
    assert FIRST not in str(world.tool_facts(1))
