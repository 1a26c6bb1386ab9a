"""A client cannot pretend to be the timer of an approval."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from nats.js.errors import NoStreamResponseError

from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import partition_of
from tests.chaos.test_parked_runs import Realm, Waiting, answer, told


def test_a_client_that_pretends_to_be_the_timer_of_an_approval_closes_nothing(
    server: EmbeddedServer, tmp_path: Path
):
    realm = Realm(server, tmp_path)
    realm.realm = "pretended"
    realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("strike('it')")
        client, body = waiting.client, {"approval_id": asked["approval_id"]}
        refused = await client.ask("approval_due", "s", body, Nats_Msg_Id="timer/approval.x/1")
        assert refused.code == "UNKNOWN_VERB"
        await client.submit("approval_due", "s", body, Nats_Msg_Id="timer/approval.x/2")
        fired = f"rookery.{client.realm}.fired.{partition_of('s')}.approval_due.s"
        with pytest.raises(NoStreamResponseError):
            await client.jetstream.publish(fired, json.dumps(body).encode())
        await client.submit("decide", "s", answer(asked))
        assert await waiting.result() == "did it"
        assert waiting.programs.of("approval.closed") == []

    told(realm, story, "admin")
    assert realm.done == ["it"]
