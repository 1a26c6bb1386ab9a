"""A peer in JavaScript with a key of its own: it asks a session and answers it, by the official
NATS client and Web Crypto. The packages are fetched once, into the user's cache.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import rookery.ops.examples.mesh as examples
from rookery.actors.keys.approver_signatures import Signer
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.peers.items import Responder
from tests.node_packages import node_folder
from tests.peers.peer_realms import PeerRealm

PACKAGES = ("@nats-io/transport-node@3.3.1", "@nats-io/jetstream@3.3.1")
PROGRAM = Path(examples.__file__).with_name("client.mjs")
RUN_S = 180
NAME = "peer"
"""That of the server's own credential of this role."""
HANDLER = """
found = await send_request("peer@peer", "confirm", item["params"])
[item["from"], found]
"""


@pytest.fixture(scope="module")
def folder() -> Path:
    return node_folder("javascript-client", PACKAGES, PROGRAM)


def test_a_client_with_a_key_of_its_own_asks_and_answers(folder: Path, tmp_path: Path):
    """Each side verifies the other; a request to the client waits until it listens."""
    key = Signer(b"J" * 32)
    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        realm = PeerRealm(server, "west", tmp_path / "west")
        with realm.node("--peers"):
            task = _task(realm, server, key)
            early = asyncio.run(_serve(realm))
            said = _run(folder, task)
            assert said == {"status": "completed", "result": ["peer@peer", _seen(7)]}
            assert asyncio.run(_responded(realm, early)) == _seen("early")


def _seen(params: object) -> dict[str, object]:
    return {"by": NAME, "seen": params}


def _task(realm: PeerRealm, server: EmbeddedServer, key: Signer) -> dict[str, Any]:
    """What the program is called with, once the realm trusts its key."""
    realm.card()
    (realm.home / "js.pem").write_text(key.private_pem, encoding="utf-8")
    terms = ("--public-key", "js.pem", "--as", NAME, "--approval", "none")
    assert realm.rookery("peers", "accept", *terms).code == 0
    where = urlsplit(server.url_for(Role.PEER, realm="west"))
    return {
        "server": f"{where.hostname}:{where.port}",
        "user": where.username,
        "pass": where.password,
        "realm": "west",
        "realmKey": realm.rookery("peers", "card", "--json").json["key"],
        "name": NAME,
        "key": key.private_pem,
        "to": "coder",
        "intent": "review",
        "params": 7,
    }


async def _serve(realm: PeerRealm) -> str:
    """The id of a request to the client, which does not listen yet. It arrives before the other one
    of the same session."""
    async with realm.client() as client:
        await client.run("coder", "1")
        await client.serve_peers("coder", Responder(code=HANDLER))
        return (await client.send_request("coder", f"{NAME}@{NAME}", "confirm", "early")).id


def _run(folder: Path, task: dict[str, Any]) -> Any:
    command = ["node", str(folder / PROGRAM.name), json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def _responded(realm: PeerRealm, request_id: str) -> Any:
    async with realm.client() as client:
        return await client.wait_for_response("coder", request_id)
