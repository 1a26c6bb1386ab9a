"""A body above 64 KiB is in the blob store, and the fact has its digest."""

from __future__ import annotations

import asyncio

import msgspec

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import RunRequest
from tests.execution.realm_fixture import Serving
from tests.execution.session_client import Visit
from tests.stock_client import Stock


def test_a_large_body_is_kept_by_its_digest_and_its_run_works(serving: Serving):
    code = "x = 1\n" * 20_000

    async def scenario(client: Stock) -> None:
        visit = Visit(client, "large")
        await asyncio.gather(visit.run("large", body={"code": code}), visit.run("small"))
        (accepted,) = visit.accepted("large")
        assert (accepted["request"]["code"], accepted["request"]["inputs"]) == ("", {})
        kept = await read_blob(serving, accepted["request_blob"])
        request = msgspec.json.decode(kept, type=RunRequest)
        assert (request.code, digest_bytes(kept)) == (code, accepted["request_blob"])
        assert [await visit.commit(), await visit.commit()] == ["large", "small"]
        assert (await visit.answer("large")).body["state"] == "committed"
        await visit.send("large", reply_name="again", body={"code": code})
        assert await visit.answer("again") == await visit.answer("large")

    serving.visit(scenario)


async def read_blob(serving: Serving, digest: str) -> bytes:
    bus = JetStreamBus(serving.url_for(Role.NODE), realm=serving.realm)
    await bus.start()
    try:
        return await bus.blobs.get(digest)
    finally:
        await bus.stop()
