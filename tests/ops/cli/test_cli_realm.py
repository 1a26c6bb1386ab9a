"""``rookery realm upgrade`` prints its plan, and applies it when every node has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rookery.bus.clock import wait_until
from rookery.bus.nats.connection import Connection
from rookery.bus.storage.bucket import Bucket
from rookery.bus.storage.claims import JetStreamClaims
from rookery.bus.streams import ensure_streams
from rookery.bus.subjects import Subjects
from tests.bus.formats import append_as_format_1, make_format_1
from tests.bus.journals import Writer, session
from tests.nodes import NodeProcess
from tests.ops.fixtures import Ended, Realm

Work = Callable[[Connection, Subjects], Coroutine[Any, Any, None]]


def in_realm(realm: Realm, work: Work) -> None:
    async def go() -> None:
        connection = Connection(realm.server.url)
        await connection.open()
        try:
            await work(connection, Subjects(realm.name))
        finally:
            await connection.close()

    asyncio.run(go())


def claims_of(connection: Connection, subjects: Subjects) -> JetStreamClaims:
    return JetStreamClaims(Bucket(connection, subjects.claims_bucket))


async def leave_an_old_realm(connection: Connection, subjects: Subjects) -> None:
    await make_format_1(connection, subjects)
    await ensure_streams(connection, [claims_of(connection, subjects).spec])
    writer = Writer()
    await append_as_format_1(connection, subjects, [writer.next(session("a"))])


async def serve_it(connection: Connection, subjects: Subjects) -> None:
    """As an older node does: the claim is held by its name."""
    claims = claims_of(connection, subjects)
    assert await claims.acquire("node.elder", "elder", 2) is not None


def test_an_old_realm_is_upgraded_when_its_nodes_have_left(realm: Realm):
    in_realm(realm, leave_an_old_realm)
    looked = realm.rookery("realm", "upgrade", "--check")
    assert looked.code == 0
    assert "would be brought from format 1 to 2" in looked.out
    assert "its 1 messages stay" in looked.out
    assert "REALM_UPGRADE_REQUIRED" in realm.rookery("up", "--url", realm.server.url).err

    in_realm(realm, serve_it)
    refused = realm.rookery("realm", "upgrade")
    assert refused.code != 0
    assert "REALM_IN_USE: realm" in refused.err
    assert "elder" in refused.err

    def upgraded() -> Ended | None:
        done = realm.rookery("realm", "upgrade", "--json")
        return None if done.code else done

    done = wait_until(upgraded, 20)
    assert done is not None
    assert done.json["done"] is True
    again = realm.rookery("realm", "upgrade")
    assert (again.code, "has format 2 already" in again.out) == (0, True)
    assert realm.rookery("journal", "verify").code == 0
    where = ("--url", realm.server.url, "--realm", realm.name, "--accept-unknown-durability")
    with NodeProcess(realm.home, *where, "--driver", "outside", "--metrics-port", "0") as node:
        assert node.served() == 16
