"""Calls of tools with a credential: what follows a refusal by the service, and a lost answer.

``Issuer`` is what is outside of every node: it issues credentials, and the tools' backend accepts
or refuses them.
"""

from __future__ import annotations

import asyncio

import pytest

from rookery.actors.leases import CurrentCredential, LeaseCredential
from rookery.actors.tools.authoring.credential import ToolCredential
from rookery.actors.tools.catalogue import catalogue_name
from rookery.actors.tools.hosts.remote_host import RemoteToolHost
from rookery.bus.memory.workers import MemoryToolWorkers, MemoryWorkerEndpoint
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.worker_protocol import Job, JobAnswer, ServedTool, WorkerCatalogue
from tests.tools.tool_fixtures import SURFACE, ToolNode, ToolWorld, call, capability

FIRST, SECOND = "canary-1-4f0c9b27d6e1", "canary-2-4f0c9b27d6e1"
READ = capability("read", binding="mail")
SEND = capability("send", binding="mail", idempotent=False, timeout_ms=50_000)


class Issuer:
    """Issues the second credential when the first is refused, and then no more."""

    def __init__(self) -> None:
        self.generation, self.refused = 1, list[int]()
        self.is_slow = self.has_deleted = False

    async def get(self, binding: str) -> CurrentCredential:
        value = FIRST if self.generation == 1 else SECOND
        return CurrentCredential(LeaseCredential(value=value), self.generation)

    async def get_newer(self, binding: str, generation: int) -> CurrentCredential:
        while self.generation <= generation or self.is_slow:
            await asyncio.sleep(0.01)
        return await self.get(binding)

    async def get_past(self, binding: str, since_ms: int) -> tuple[CurrentCredential, ...]:
        if self.has_deleted:
            raise Failed("LEASE_UNAVAILABLE", "an older credential was deleted")
        return (await self.get(binding),)

    async def reject(self, binding: str, generation: int) -> None:
        self.refused.append(generation)
        self.generation = 2


def given(world: ToolWorld) -> list[str]:
    """The credentials that the tool got, in order."""
    credentials = [ctx.credential for ctx in world.backend.contexts]
    return [one.value for one in credentials if isinstance(one, ToolCredential)]


def error_of(world: ToolWorld) -> tuple[str, str]:
    world.until(lambda: world.kinds()[-1] == "failed")
    error = world.tool_facts(1)[-1].error
    return error.code, error.message


def test_an_idempotent_call_whose_credential_is_refused_is_made_once_more(world: ToolWorld):
    issuer = Issuer()
    world.begin(READ, credentials=issuer)
    world.backend.refused = {FIRST}
    world.request_calls(call(1, "read", a=1))
    world.until(lambda: world.kinds()[-1] == "completed")
    assert world.kinds() == ["requested", "intent_recorded", "completed"]
    assert given(world) == [FIRST, SECOND]
    assert issuer.refused == [1]


def test_a_call_whose_next_credential_is_refused_too_fails_and_names_the_lease(world: ToolWorld):
    issuer = Issuer()
    world.begin(READ, credentials=issuer)
    world.backend.refused = {FIRST, SECOND}
    world.request_calls(call(1, "read", a=1))
    code, message = error_of(world)
    assert code == "CREDENTIAL_REJECTED"
    assert "the lease mail, also after its refresh" in message
    assert given(world) == [FIRST, SECOND]
    assert issuer.refused == [1, 2]


def test_a_call_that_is_not_idempotent_is_never_made_again_for_a_refused_credential(
    world: ToolWorld,
):
    """Whatever its function returns: it may have acted before the refusal."""
    issuer = Issuer()
    world.begin(SEND, credentials=issuer)
    world.backend.refused = {FIRST}
    world.request_calls(call(1, "send", a=1))
    code, message = error_of(world)
    assert code == "CREDENTIAL_REJECTED"
    assert "the lease mail, and the tool is not idempotent" in message
    assert (given(world), issuer.refused) == ([FIRST], [1])


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_call_waits_for_the_next_credential_no_longer_than_its_run_and_its_time(
    world: ToolWorld, is_cancelled: bool
):
    issuer = Issuer()
    issuer.is_slow = True
    node = world.begin(capability("read", binding="mail", timeout_ms=5_000), credentials=issuer)
    world.backend.refused = {FIRST}
    world.request_calls(call(1, "read", a=1))
    world.until(lambda: issuer.refused)
    world.settle()
    if is_cancelled:
        world.cancel_run(node)
    code, _ = error_of(world)
    assert code == ("CANCELLED" if is_cancelled else "CREDENTIAL_REJECTED")
    assert given(world) == [FIRST]


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
