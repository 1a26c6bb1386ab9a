"""Tools of workers that get a credential: the node sends it, and no answer brings it back."""

from __future__ import annotations

import asyncio
import json

from rookery.actors.tools import ToolCredential, ToolError, tool
from rookery.actors.tools.capability_checks import CapabilityChecks
from rookery.actors.tools.hosts.remote_host import _checked_outcome
from rookery.schemas.calls import CallOutcome, Capability
from tests.tools.test_remote_host import RemoteRealm, code, context

VALUE = "canary-7b1f5c2e9a4d8036"


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
                CapabilityChecks(Capability(name="x", description="")), body, ToolCredential(VALUE)
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
