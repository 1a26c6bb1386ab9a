"""The doctor says where an envelope to each paired realm ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rookery.actors.peers.trust import PeerCard, RealmKeys
from rookery.bus.clock import entropy
from rookery.bus.server.server import EmbeddedServer
from rookery.ops.checks import CheckVerdict, Finding
from rookery.ops.peer_pings import _answered
from rookery.schemas.envelope import EntityId
from rookery.schemas.peers.roster import REALM_NAME
from tests.peers.peer_realms import PeerRealm, pair_realms


@pytest.fixture(scope="module")
def sites(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PeerRealm, PeerRealm]]:
    """Two realms of one server that trust each other, each with a node."""
    folder = tmp_path_factory.mktemp("pings")
    west, east = (PeerRealm(server, name, folder / name) for name in ("pw", "pe"))
    with west.node(), east.node():
        pair_realms(west, east)
        yield west, east


def found(realm: PeerRealm) -> dict[str, tuple[str, str]]:
    """The verdict and the detail of each check of peers."""
    findings = realm.rookery("doctor", "--json").json["findings"]
    return {
        one["check"]: (one["verdict"], one["detail"])
        for one in findings
        if one["check"].startswith("peer")
    }


def messages_of_the_realm_itself(realm: PeerRealm) -> int:
    """How many messages the journal has of the entity that pings are addressed to."""

    async def read() -> int:
        async with realm.client() as client:
            return len(await client.journal.read(EntityId("peer", REALM_NAME)))

    return asyncio.run(read())


def test_a_ping_is_answered_by_the_node_of_the_other_realm_and_leaves_no_fact(
    sites: tuple[PeerRealm, PeerRealm],
):
    west, east = sites
    for realm, other in ((west, "pe"), (east, "pw")):
        verdict, detail = found(realm)[f"peer {other}"]
        assert (verdict, detail.split(" in ")[0]) == ("ok", "answered")
    assert messages_of_the_realm_itself(west) == messages_of_the_realm_itself(east) == 0


def test_a_realm_without_an_inbox_here_differs_from_one_that_refuses(
    sites: tuple[PeerRealm, PeerRealm],
):
    west, east = sites
    stranger = RealmKeys("nowhere", {1: entropy(32)}).enrol(1)
    card = PeerCard(enrolment=stranger, alias="nowhere").line
    assert west.rookery("peers", "accept", card).code == 0
    assert east.rookery("peers", "revoke", "pw").code == 0
    pings = found(west)
    verdict, detail = pings["peer nowhere"]
    assert (verdict, "no inbox takes envelopes for nowhere" in detail) == ("warn", True)
    verdict, detail = pings["peer pe"]
    assert (verdict, "has the envelope, and no node answers" in detail) == ("warn", True)
    assert found(east) == {"peers": ("ok", "no realm is paired")}


@pytest.mark.parametrize(
    ("ahead_ms", "verdict"), [(400, "ok"), (61_000, "warn"), (-90_000, "warn")]
)
def test_a_clock_that_is_off_is_named_before_envelopes_are_refused(ahead_ms: int, verdict: str):
    finding: Finding = _answered("peer x", 500, ahead_ms)
    assert finding.verdict is CheckVerdict(verdict)
    assert ("s off" in finding.detail) is (verdict == "warn")
