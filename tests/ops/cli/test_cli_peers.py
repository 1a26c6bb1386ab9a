"""``rookery peers``: realms pair by cards, list and revoke each other, and rotate their keys."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from Crypto.PublicKey import ECC

from rookery.bus.clock import wait_until
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.peer import Paired
from rookery.schemas.peers.roster import ROSTER_KEY, Pairing
from tests.nodes import node_on, sealing_key_of
from tests.ops.fixtures import Ended, Realm

PATIENCE_S = 90.0


class Site(Realm):
    """A realm with a node that executes runs."""

    def __init__(self, server: EmbeddedServer, name: str, home: Path) -> None:
        super().__init__(server, name, home)
        self.environment |= sealing_key_of(server, name) | {"COLUMNS": "200"}

    def json(self, *arguments: str) -> Any:
        ended = self.rookery("peers", *arguments, "--json")
        assert ended.code == 0, ended
        return ended.json

    def refused(self, *arguments: str) -> str:
        ended = self.rookery("peers", *arguments)
        assert ended.code in (2, 3, 4), ended
        return ended.err.split(":")[0]

    def card(self, *arguments: str) -> dict[str, str]:
        def printed() -> Ended | None:
            ended = self.rookery("peers", "card", *arguments, "--json")
            return ended if ended.code == 0 else None

        found: dict[str, str] = wait_until(printed, PATIENCE_S).json
        return found

    def states(self) -> dict[str, str]:
        return {one["alias"]: one["state"] for one in self.json("list", "--all")}


@pytest.fixture(scope="module")
def sites(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Site, Site]]:
    """Two realms of one server, each with a node."""
    west, east = (Site(server, name, tmp_path_factory.mktemp(name)) for name in ("wst", "est"))
    variables = {"ROOKERY_NODE_DRIVER": "sandbox"}
    with (
        node_on(server, "wst", west.home, **variables),
        node_on(server, "est", east.home, **variables),
    ):
        yield west, east


def test_two_realms_are_paired_by_a_card_each_way_and_rotate_their_keys(sites: tuple[Site, Site]):
    west, east = sites
    for one, other, alias in ((west, east, "east"), (east, west, "west")):
        card = other.card()
        terms = ("--intents", "review,ask", "--sessions", "coder*", "--expires", "90d")
        accepted = one.rookery("peers", "accept", card["card"], "--as", alias, *terms)
        assert accepted.code == 0, accepted
        assert card["fingerprint"] in accepted.out
        listed = one.json("show", alias)
        assert listed in one.json("list")
        assert (listed["state"], listed["fingerprint"]) == ("valid", card["fingerprint"])
        assert (listed["intents"], listed["sessions"]) == (["review", "ask"], ["coder*"])
    assert "unsigned" in west.rookery("peers", "list").out
    assert "review, ask" in west.rookery("peers", "show", "east").out
    (west.home / "east.card").write_text(east.rookery("peers", "card").out, encoding="ascii")
    assert west.refused("accept", "east.card", "--as", "other") == "PEER_ALIAS_TAKEN"

    east.json("rotate", "--all-keys", "--overlap", "1h")
    after = east.card()
    assert after["fingerprint"] != west.json("show", "east")["fingerprint"]
    assert west.refused("accept", after["card"], "--as", "other") == "PEER_ALIAS_TAKEN"
    west.json("accept", after["card"], "--as", "east")
    shown = west.json("show", "east")
    assert shown["fingerprint"] == after["fingerprint"]
    assert shown["former_until_ms"] > 0
    assert shown["intents"] == ["review", "ask"]
    east.json("rotate", "--all-keys", "--overlap", "0s")
    names = [one["name"] for one in east.rookery("secrets", "list", "--json").json]
    assert names.count("peer") == 2, "that of the generation before may still count"
    assert east.refused("rotate") == "INVALID_ARGUMENT"


def test_a_card_is_refused_that_is_mistyped_taken_or_our_own(sites: tuple[Site, Site]):
    west, east = sites
    card = east.card("coder")["card"]
    assert west.refused("accept", f"{card[:-1]}{'a' if card[-1] != 'a' else 'b'}") == (
        "INVALID_ARGUMENT"
    )
    assert west.refused("accept", west.card()["card"], "--as", "mirror") == "GUARD_REJECTED"
    assert west.refused("accept", west.card()["card"]) == "INVALID_ARGUMENT"
    assert west.refused("accept") == "INVALID_ARGUMENT"
    assert west.refused("accept", card, "--as", "a.b") == "INVALID_ARGUMENT"
    assert west.refused("show", "nobody") == "PEER_UNKNOWN"
    assert west.refused("revoke", "nobody") == "PEER_UNKNOWN"


def test_a_revoked_peer_and_a_revoked_session_of_one(sites: tuple[Site, Site], tmp_path: Path):
    west, _ = sites
    key = ECC.generate(curve="Ed25519")
    file = tmp_path / "bob.pub"
    file.write_text(key.public_key().export_key(format="PEM"), encoding="ascii")
    assert west.refused("accept", "--public-key", str(file)) == "INVALID_ARGUMENT"
    west.json("accept", "--public-key", str(file), "--as", "bob")
    west.json("revoke", "coder@bob", "--reason", "left")
    assert west.json("show", "bob")["revoked_names"] == ["coder"]
    west.json("revoke", "bob")
    assert west.states()["bob"] == "revoked"
    assert "\nbob " not in west.rookery("peers", "list").out
    west.json("accept", "--public-key", str(file), "--as", "bob")
    assert west.states()["bob"] == "valid"


def test_a_session_gets_its_next_key(sites: tuple[Site, Site]):
    west, _ = sites
    first = west.json("rotate", "coder")
    assert west.json("rotate", "coder")["change"] == first["change"] + 1
    assert west.refused("rotate", "no.session") == "INVALID_ARGUMENT"


def test_sessions_ask_and_respond_by_commands(sites: tuple[Site, Site], tmp_path: Path):
    west, _ = sites
    for session in ("planner", "coder"):
        assert west.rookery("run", "--session", session, "-e", "1").code == 0
    file = tmp_path / "x.py"
    file.write_text("print(1)", encoding="utf-8")
    asks = ("ask", "coder", "review", "--session", "planner")
    sent = west.json(*asks, "-p", f"file=@{file}", "-p", "lines=[1, 2]", "--no-wait")

    def received() -> Any:
        return west.json("exchanges", "coder")["unanswered"]

    (listed,) = wait_until(received, PATIENCE_S)
    assert (listed["id"], listed["peer"], listed["intent"]) == (sent["id"], "planner@wst", "review")
    assert "from" in west.rookery("peers", "exchanges", "coder").out
    (waits,) = west.json("exchanges", "planner")["requests"]
    assert (waits["id"], waits["state"]) == (sent["id"], "Sent")
    assert west.refused("respond", sent["id"], "--session", "tester") == "SESSION_NOT_FOUND"
    west.json("respond", sent["id"], '{"ok": true}', "--session", "coder")
    followed = west.rookery("peers", "follow", sent["id"], "--session", "planner").lines
    assert [one["type"].split(".")[1] for one in followed if "corr_id" in one] == [
        "request_sent",
        "response_ended",
    ]
    assert followed[-1]["response"]["result"] == {"ok": True}
    assert west.refused("respond", sent["id"], "--session", "coder") == "PEER_ALREADY_REPLIED"
    west.json("send", "coder", "hello", "--session", "planner")
    assert west.refused("send", "coder@nowhere", "hello", "--session", "planner") == "PEER_UNKNOWN"
    assert west.refused("ask", "coder", "review", "-p", "x", "--session", "planner") == (
        "INVALID_ARGUMENT"
    )
    assert west.refused(*asks, "--timeout", "1s") == "PEER_TIMED_OUT"


def test_a_realm_with_an_approver_takes_signed_changes_and_shows_forged_ones(
    server: EmbeddedServer, tmp_path: Path, sites: tuple[Site, Site]
):
    south = Site(server, "south", tmp_path)
    card, key = sites[0].card()["card"], tmp_path / "ann.pem"
    with node_on(server, "south", tmp_path, ROOKERY_NODE_DRIVER="sandbox"):
        assert south.rookery("approvers", "add", "ann", "--generate", str(key)).code == 0
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        south.card()
        assert south.refused("accept", card) == "SIGNATURE_REQUIRED"
        south.json("accept", card, "--key", str(key))
        (listed,) = south.json("list")
        assert listed["signed_by"]
    forged = Paired(change=9, pairing=Pairing(alias="evil", key=listed["key"]))
    south.write_facts(EntityId("peer", ROSTER_KEY), [forged])
    ended = south.rookery("peers", "list")
    assert ended.code == 1
    assert "SKIPPED" in ended.err
    assert "evil" not in ended.out


def test_a_program_answers_peers_until_it_is_stopped(sites: tuple[Site, Site], tmp_path: Path):
    west, _ = sites
    for session in ("planner", "adder"):
        assert west.rookery("run", "--session", session, "-e", "1").code == 0
    handler, intents = tmp_path / "handler.py", tmp_path / "intents.json"
    handler.write_text("item['params']['n'] + 1", encoding="utf-8")
    intents.write_text('{"add": {"description": "adds one"}}', encoding="utf-8")
    serve = ("serve", "adder", "--handler", str(handler), "--intents", str(intents))
    assert west.json(*serve, "--mode", "timed", "--idle", "1h")["mode"] == "Timed"
    assert west.json("ask", "adder", "add", "-p", "n=4", "--session", "planner") == 5
    assert west.refused("ask", "adder", "pay", "--session", "planner") == "PEER_DECLINED"
    assert west.json("stop", "adder")["phase"] == "Stopped"
    assert west.json("event", "adder", '{"n": 1}', "--source", "cron")["to"] == "adder"
    assert west.refused("serve", "adder", "--handler", str(tmp_path)) == "INVALID_ARGUMENT"
    intents.write_text('{"add": {"params": {"type": "nothing"}}}', encoding="utf-8")
    assert west.refused(*serve) == "INVALID_ARGUMENT"
    assert west.refused("serve", "nobody", "--handler", str(handler)) == "SESSION_NOT_FOUND"
