"""Tools of workers that get a credential: the node sends it, and no answer brings it back."""

from __future__ import annotations

import asyncio
import json

from rookery.actors.tools import ToolCredential, ToolError, tool
from rookery.actors.tools.functions.remote_host import _checked_outcome
from rookery.actors.tools.hosts.host import PastAttempt
from rookery.actors.tools.validation.capability_checks import CapabilityChecks
from rookery.schemas.calls import CallOutcome, Capability
from rookery.schemas.worker_protocol import Job, ServedTool, WorkerCatalogue
from tests.tools.test_remote_host import RemoteRealm, code, context

VALUE, NEXT = "canary-7b1f5c2e9a4d8036", "canary-02c4d9b6e8f71a35"


@tool(binding="github")
def give_away(credential: ToolCredential, how: str) -> str:
    """What it should not do."""
    if how == "reject":
        credential.reject()
    if how == "raise":
        raise ToolError("TOOL_ERROR", f"refused {credential.header()}")
    return f"{credential.header()['Authorization']} " + "x" * (100_000 if how == "large" else 1)


def test_a_worker_gets_the_credential_with_the_call_and_its_answer_has_none():
    async def scenario() -> None:
        stage = RemoteRealm()
        async with stage.worker(give_away):
            remote = await stage.find()
            for how in ("return", "raise", "large", "reject"):
                credential = ToolCredential(VALUE)
                ctx = context("shop_give_away", how, credential=credential)
                outcome = await remote.call(ctx, 5_000)
                assert "Bearer [credential]" in f"{outcome.value}{outcome.error}"
                assert VALUE not in f"{outcome}"
                assert credential.is_rejected is (how == "reject")
            without = await remote.call(context("shop_give_away", "return"), 5_000)
            assert code(without) == "LEASE_UNAVAILABLE"

    asyncio.run(scenario())


def test_an_answer_that_a_worker_has_not_scrubbed_is_scrubbed_here():
    async def scenario() -> None:
        async def answer(body: bytes) -> CallOutcome:
            return await _checked_outcome(
                CapabilityChecks(Capability(name="x", description="")),
                body,
                (ToolCredential(VALUE),),
            )

        for body in (
            {"value": {VALUE: [VALUE]}},
            {"value": VALUE.encode().hex()},
            {"error": {"code": VALUE, "message": f"no {VALUE[:16]}"}},
            {"value": VALUE * 10_000},
        ):
            outcome = await answer(json.dumps(body).encode())
            assert VALUE[:16] not in str(outcome)
            assert "[credential]" in str(outcome)

    asyncio.run(scenario())


def test_the_answer_of_a_past_attempt_is_scrubbed_of_every_credential_it_may_have_had():
    """As a node gets it that takes the call over, from a worker that has not scrubbed it."""

    async def scenario() -> None:
        stage = RemoteRealm()
        bench = stage.bench()
        jobs: list[Job] = []
        served = ServedTool(capability=Capability(name="give", description=""))
        await bench.open(WorkerCatalogue(worker="bert", tools=(served,)), jobs.append, print)
        remote = await stage.find()
        call = asyncio.ensure_future(remote.call(context("shop_give"), 5_000))
        while not jobs:
            await asyncio.sleep(0)
        await bench.reply(jobs[0], json.dumps({"value": f"{VALUE} {NEXT}"}).encode())
        await call
        past = PastAttempt(
            name="shop_give",
            call_id="c1",
            attempt=1,
            schema_digest=next(iter(remote.catalogue_tools)).available.schema_digest,
            left_ms=5_000,
            credentials=(ToolCredential(VALUE), ToolCredential(NEXT)),
        )
        outcome = await remote.query_outcome(past)
        assert outcome.value == "[credential] [credential]"

    asyncio.run(scenario())
