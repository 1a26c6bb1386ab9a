"""``rookery realm upgrade`` prints its plan, and applies it when every node has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from rookery.bus.clock import wait_until
from rookery.bus.nats.connection import Connection
from rookery.bus.storage.bucket import Bucket, JetStreamClaims
from rookery.bus.subjects import Subjects
from tests.bus.formats import FormerSubjects, append_to, make_format_1, make_format_2
from tests.bus.journals import Writer, session
from tests.nodes import NodeProcess, served_by
from tests.ops.fixtures import Ended, Realm

Work = Callable[[Connection, Subjects], Coroutine[Any, Any, None]]


def in_realm(realm: Realm, work: Work) -> None:
    async def go() -> None:
        connection = Connection(realm.server.admin_url)
        await connection.open()
        try:
            await work(connection, Subjects(realm.name))
        finally:
            await connection.close()

    asyncio.run(go())


async def leave_an_old_realm(connection: Connection, subjects: Subjects) -> None:
    await make_format_1(connection, subjects)
    writer = Writer()
    await append_to(connection, subjects, 1, [writer.next(session("a"))])


async def serve_as_elder(connection: Connection, subjects: Subjects) -> None:
    """As an older node does: the claim is held by its name."""
    bucket = Bucket(connection, FormerSubjects(subjects.realm), subjects.claims_bucket)
    assert await JetStreamClaims(bucket).acquire("node.elder", "elder", 5) is not None


def test_an_old_realm_is_upgraded_when_its_nodes_have_left(realm: Realm):
    in_realm(realm, leave_an_old_realm)
    looked = realm.rookery("realm", "upgrade", "--check")
    assert looked.code == 0
    assert "would be brought from format 1 to 3" in looked.out
    assert "the 1 messages of" in looked.out

    in_realm(realm, serve_as_elder)
    assert "REALM_IN_USE: realm" in realm.rookery("up", *served_by(realm.server, realm.name)).err
    refused = realm.rookery("realm", "upgrade")
    assert refused.code != 0
    assert "REALM_IN_USE: realm" in refused.err
    assert "elder" in refused.err

    def upgraded() -> Ended | None:
        done = realm.rookery("realm", "upgrade", "--json")
        return None if done.code else done

    done = wait_until(upgraded, 90)
    assert done is not None
    assert done.json["done"] is True
    again = realm.rookery("realm", "upgrade")
    assert (again.code, "has format 3 already" in again.out) == (0, True)
    assert realm.rookery("journal", "verify").code == 0
    serve(realm)


def serve(realm: Realm) -> None:
    where = (*served_by(realm.server, realm.name), "--accept-unknown-durability")
    with NodeProcess(realm.home, *where, "--driver", "outside", "--metrics-port", "0") as node:
        assert node.served() == 16


@pytest.mark.parametrize("make", [make_format_1, make_format_2])
def test_a_node_upgrades_an_old_realm_that_no_node_serves_when_it_starts(realm: Realm, make: Work):
    in_realm(realm, make)
    assert "REALM_UPGRADE_REQUIRED" in realm.rookery("nodes", "drain", "elder").err
    checked = realm.rookery("doctor", *served_by(realm.server, realm.name)).out
    assert "REALM_UPGRADE_REQUIRED" in checked or "this version serves 3" in checked
    serve(realm)
    assert "has format 3 already" in realm.rookery("realm", "upgrade").out
