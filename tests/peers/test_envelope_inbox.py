"""Envelopes through a real inbox: a verified one is one fact with its proof, a refused one nothing.

A client with a key of its own publishes with the role of a peer, by a stock connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from rookery.actors.keys.ed25519 import SigningKey, is_valid_signature
from rookery.actors.peers.trust.cards import PeerCard
from rookery.bus.clock import SystemClock, wait_until
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.peers.envelope import ENVELOPE_DOMAIN
from tests.nodes import NodeProcess, node_on, sealing_key_of
from tests.ops.fixtures import Realm
from tests.peers.envelope_world import Sent, Site
from tests.stock_client import stock, until

BOB, EVE = SigningKey(b"B" * 32), SigningKey(b"E" * 32)
PATIENCE_S = 90.0


class Office(Realm):
    """A realm with a node, a session ``coder`` and the client ``bob`` in its roster."""

    def __init__(self, server: EmbeddedServer, home: Path) -> None:
        super().__init__(server, "office", home)
        self.environment |= sealing_key_of(server, "office")
        self.node: NodeProcess
        self.realm_key = ""
        self._number = 0

    def begin(self) -> None:
        assert self.rookery("run", "--session", "coder", "-e", "1").code == 0
        (self.home / "bob.pub").write_text(BOB.public_key, encoding="ascii")
        accept = ("peers", "accept", "--public-key", "bob.pub", "--as", "bob")

        def accepted() -> bool:
            return self.rookery(*accept).code == 0

        assert wait_until(accepted, PATIENCE_S)
        printed = wait_until(self._card, PATIENCE_S)
        self.realm_key = PeerCard.read(printed).enrolment.key

    def _card(self) -> str:
        ended = self.rookery("peers", "card", "--json")
        return str(ended.json["card"]) if ended.code == 0 else ""

    def message(self, **members: Any) -> Sent:
        """What bob sends the coder."""
        self._number += 1
        sender = Site(b"x")
        to = Site(b"y")
        members = {
            "from": "bob",
            "from_key": BOB.public_key,
            "to_realm_key": self.realm_key,
            "n": self._number,
            "at_ms": (now_ms := SystemClock().now_ms()),
            "expires_at_ms": now_ms + 60_000,
        } | members
        return sender.send(sender.message(to, **members), key=BOB, vouch="")

    def refused(self, code: str) -> float:
        """How many envelopes the node has refused by this code."""
        with urlopen(self.node.health + "/metrics", timeout=60) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(f'rookery_envelope_refused_total{{code="{code}"}}'):
                    return float(line.split()[-1])
        return 0.0


@pytest.fixture(scope="module")
def office(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    found = Office(server, tmp_path_factory.mktemp("office"))
    metrics = ("--metrics-port", "0")
    with node_on(server, "office", found.home, *metrics, ROOKERY_NODE_DRIVER="sandbox") as node:
        found.node = node
        found.begin()
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server") / "store", admin=True) as running:
        yield running


async def publish(
    office: Office, envelopes: Sequence[Sent], facts: int
) -> tuple[list[dict[str, Any]], list[Any]]:
    """Publish envelopes in this order; the facts that they leave, and the replies."""
    found: list[dict[str, Any]] = []
    replies: list[Any] = []

    async def seen(message: Any) -> None:
        found.extend(json.loads(message.data))

    async def answered(message: Any) -> None:
        replies.append(message.data)

    async with stock(office.server, office.name, Role.PEER) as client:
        await client.watch(f"rookery.{office.name}.ev.peer.coder", seen)
        reply_to = client.reply("refusals")
        await client.nats.subscribe(reply_to, cb=answered)
        for sent in envelopes:
            headers = {
                "Nats-Msg-Id": sent.message_id,
                "Rookery-Signature": sent.signature,
                "Rookery-Reply": reply_to,
            }
            subject = f"rookery.{office.name}.cmd.envelope.coder"
            await client.nats.publish(subject, sent.body, headers=headers)
        await until(lambda: len(found) >= facts, "the honest envelopes")
    return found, replies


def test_a_verified_envelope_is_one_fact_with_its_proof_and_a_refused_one_is_nothing(
    office: Office,
):
    honest, second = office.message(), office.message(body="again")
    bad = {
        "ENVELOPE_FORGED": Sent(honest.body, "0" * 128, "", honest.message_id),
        "ENVELOPE_UNSIGNED": Sent(honest.body, "", "", honest.message_id),
        "ENVELOPE_INVALID": Sent(honest.body, honest.signature, "", "another-id"),
        "ENVELOPE_UNKNOWN_KEY": office.message(from_key=EVE.public_key),
        "ENVELOPE_EXPIRED": office.message(at_ms=1, expires_at_ms=2),
    }
    sent = [*bad.values(), honest, honest, *bad.values(), second]
    found, replies = asyncio.run(publish(office, sent, 2))
    assert [one["item_id"] for one in found] == [honest.message_id, second.message_id]
    assert replies == []
    arrival = found[0]["arrival"]
    assert arrival["text"].encode() == honest.body
    assert (arrival["sender"], arrival["n"]) == ("bob@bob", 1)
    signed = ENVELOPE_DOMAIN + arrival["text"].encode()
    assert is_valid_signature(signed, arrival["signature"], BOB.public_key)
    refused = {code: office.refused(code) for code in bad}
    # The admitted body again is a repetition, whatever its signature: nothing is verified for it.
    assert refused == dict.fromkeys(bad, 2) | {"ENVELOPE_FORGED": 1}
    assert office.rookery("inbox", "dead", "list", "--json").json == []
