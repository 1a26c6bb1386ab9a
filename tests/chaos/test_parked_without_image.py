"""Runs that are parked without an image: a node repeats them from their facts."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.test_parked_runs import Realm, Waiting, answer, told
from tests.nodes import access_to, rookery_here
from tests.stock_client import Fields

_realms = count(1)

TOGETHER = {
    "python": (
        "import asyncio, random\nkept = random.random()\n"
        "both = await asyncio.gather(gently('a'), gently('b'))\n[*both, round(kept + n, 9)]"
    ),
    "typescript": (
        "const kept = Math.random();\n"
        "const both = await Promise.all([gently('a'), gently('b')]);\n[...both, kept + n]"
    ),
}


@pytest.fixture
def realm(server: EmbeddedServer, tmp_path: Path) -> Realm:
    realm = Realm(server, tmp_path)
    realm.realm = f"unpictured{next(_realms)}"
    return realm


@pytest.mark.parametrize("language", TOGETHER)
def test_a_run_parked_without_an_image_is_repeated_on_another_node(realm: Realm, language: str):
    """One of its calls has ended and the other is in flight when its node is killed."""
    first = realm.careful()
    where = (*access_to(realm.server, realm.realm), "--json")

    async def story(waiting: Waiting) -> None:
        given: Fields = {"language": language}
        begun = await waiting.programs.run(
            "n = 1" if language == "python" else "var n = 1", **given
        )
        assert begun["status"] == "ok"
        run = waiting.programs.begin(TOGETHER[language], **given)
        asked = await waiting.asked(2)
        interim = await run
        assert interim["status"] == "waiting_for_approval"
        (parked,) = await waiting.programs.seen("turn.parked")
        assert parked["snapshot_blob"] == parked["snapshot_id"] == ""
        await waiting.decide(asked[0])
        await waiting.programs.seen("tool.completed")
        first.kill()
        await waiting.client.submit("decide", "s", answer(asked[1]))
        await asyncio.to_thread(realm.careful)
        *did, drawn = await waiting.result(2)
        assert (did, 1 < drawn < 2) == (["did a", "did b"], True)
        for run_id in (begun["run_id"], interim["run_id"]):
            said = await asyncio.to_thread(
                rookery_here, realm.folder, "runs", "replay", run_id, *where
            )
            assert said.json["state"] == "equal", said.json

    told(realm, story)
    assert sorted(realm.done) == ["a", "b"]
