"""Which server a client finds, and as which user."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.client.client import Client, connect
from rookery.bus.roles import Role
from rookery.bus.server.store import Store
from rookery.schemas.errors import Failed, Refused
from tests.bus.realms import JetStreamRealm


def test_the_url_is_the_given_one_else_the_environments_else_the_running_servers(
    jetstream: JetStreamRealm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def opened(client: Client) -> str:
        """The prefix of the inbox of the user that it is."""
        async with client:
            return client._connection.client.new_inbox().rpartition(".")[0]

    url, address = jetstream.client_url, jetstream.server.address
    approver = Store(jetstream.server.store).credentials.path(
        jetstream.server.credential(Role.APPROVER)
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("ROOKERY_STORE", raising=False)
    monkeypatch.delenv("NATS_URL", raising=False)
    with pytest.raises(Failed, match=r"SERVER_UNREACHABLE.*rookery up"):
        connect()
    monkeypatch.setenv("ROOKERY_STORE", str(jetstream.server.store))
    assert asyncio.run(opened(connect())) == "_INBOX.default.client"
    assert asyncio.run(opened(connect(credential=approver))) == "_INBOX.default.approver"
    monkeypatch.delenv("ROOKERY_STORE")
    (tmp_path / "rookery").symlink_to(jetstream.server.store)
    assert asyncio.run(opened(connect())) == "_INBOX.default.client"
    monkeypatch.setenv("NATS_URL", address)
    with pytest.raises(Refused, match="UNAUTHORIZED"):
        asyncio.run(opened(connect()))
    assert asyncio.run(opened(connect(credential=approver))) == "_INBOX.default.approver"
    assert asyncio.run(opened(connect(address, credential=approver))) == "_INBOX.default.approver"
    assert asyncio.run(opened(connect(url))) == "_INBOX.default.client"
    monkeypatch.setenv("NATS_URL", url)
    assert asyncio.run(opened(connect())) == "_INBOX.default.client"
    with pytest.raises(Refused, match="UNAUTHORIZED"):
        asyncio.run(opened(connect(address, token="wrong")))
    with pytest.raises(Refused, match=r"UNAUTHORIZED: .* is not a credential of Rookery"):
        connect(credential=jetstream.server.store / "server.conf")
