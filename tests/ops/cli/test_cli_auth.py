"""The credentials of a realm: made, listed, handed out, replaced and taken away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nats
import pytest

from rookery.bus.roles import ROLES_FOR_ONE, Role
from rookery.bus.server.store import Store, is_accepted
from rookery.schemas.errors import Refused
from tests.ops.fixtures import Realm
from tests.stock_client import inbox_prefix, until


async def opened(url: str, **options: Any) -> Any:
    """A stock client with the credential of a URL."""
    options = {"allow_reconnect": False, "max_reconnect_attempts": 0} | options
    return await nats.connect(url, inbox_prefix=inbox_prefix(url), **options)


def refused(url: str) -> bool:
    """Whether the server refuses the credential of a URL."""
    where = urlsplit(url)
    address = f"nats://{where.hostname}:{where.port}"
    return not is_accepted(address, unquote(where.username or ""), where.password or "")


def url_of(realm: Realm, name: str) -> str:
    found = Store(realm.server.store).credentials.get(realm.name, name)
    assert found is not None
    return found.url(realm.server.address)


def test_every_role_has_a_credential_and_its_url_is_printed(realm: Realm):
    for role in Role:
        surface = ("--surface", "shop") if role in ROLES_FOR_ONE else ()
        said = realm.rookery("auth", "url", role.value, *surface)
        url = realm.server.url_for(role, realm=realm.name, surface="shop" if surface else "")
        assert (said.code, said.out) == (0, f"{url}\n")
        assert not refused(url)
    assert realm.rookery("auth", "url", "--json").json == {"url": url_of(realm, "client")}


def test_the_url_of_a_role_has_no_credential_of_another_role(realm: Realm, tmp_path: Path):
    """The configured credential counts if it has the role, and the store's else."""
    approver = realm.server.credential(Role.APPROVER, realm=realm.name)
    made = realm.rookery("auth", "create", "olga", "--role", "operator", "--json").json
    (realm.home / "rookery.toml").write_text(f'[server]\ncredentials_file = "{made["file"]}"\n')
    assert realm.rookery("auth", "url", "operator").out == url_of(realm, "olga") + "\n"
    assert realm.rookery("auth", "url", "approver").out == approver.url(realm.server.address) + "\n"
    assert realm.rookery("auth", "url").out == url_of(realm, "client") + "\n"
    elsewhere = ("--store", str(tmp_path / "none"), "--url", realm.server.address)
    assert realm.rookery("auth", "url", "operator", *elsewhere).out == url_of(realm, "olga") + "\n"
    refused = realm.rookery("auth", "url", "approver", *elsewhere)
    assert (refused.code != 0, refused.err.split(":")[0]) == (True, "CREDENTIAL_NOT_FOUND")
    assert "has the role operator, not approver" in refused.err


def test_a_list_of_credentials_has_no_secret(realm: Realm):
    empty = realm.rookery("auth", "list", "--json", "--store", str(realm.home))
    assert (empty.json, list(realm.home.glob("credentials"))) == ([], []), "looking makes nothing"
    assert realm.rookery("auth", "url").code == 0
    listed = realm.rookery("auth", "list", "--json")
    mine = {one["name"]: one["role"] for one in listed.json if one["realm"] == realm.name}
    assert mine == {role.value: role.value for role in Role if role not in ROLES_FOR_ONE}
    table = realm.rookery("auth", "list")
    for credential in Store(realm.server.store).credentials.all():
        for secret in (credential.password, credential.seed):
            assert secret not in listed.out + table.out


def test_a_made_credential_is_accepted_and_its_name_is_taken(realm: Realm):
    made = realm.rookery("auth", "create", "anna", "--role", "approver", "--json")
    assert made.json["role"] == "approver"
    assert Path(made.json["file"]).stat().st_mode & 0o777 == 0o600
    assert not refused(url_of(realm, "anna"))
    assert realm.rookery("auth", "url", "anna").out == url_of(realm, "anna") + "\n"
    assert realm.rookery("auth", "url", "ann").err.startswith("CREDENTIAL_NOT_FOUND: ")
    again = realm.rookery("auth", "create", "anna", "--role", "client")
    assert (again.code != 0, again.err.split(":")[0]) == (True, "CREDENTIAL_EXISTS")


def test_a_command_that_reads_the_store_names_the_credential_that_it_needs(realm: Realm):
    made = realm.rookery("auth", "create", "olga", "--role", "operator", "--json")
    (realm.home / "rookery.toml").write_text(
        f'[server]\ncredentials_file = "{made.json["file"]}"\n'
    )
    for command in (("runs", "list"), ("nodes", "list"), ("journal", "verify")):
        refused = realm.rookery(*command)
        assert (refused.code, refused.err.split(":")[0]) == (3, "NOT_PERMITTED"), refused
        assert "has the role operator" in refused.err
        assert f"ROOKERY_SERVER_CREDENTIALS_FILE) = {realm.name}.node.json" in refused.err


def test_a_worker_has_a_surface_and_no_other_role_has_one(realm: Realm):
    for words in (("w", "--role", "worker"), ("w", "--role", "client", "--surface", "shop")):
        ended = realm.rookery("auth", "create", *words)
        assert (ended.code, ended.err.split(":")[0]) == (2, "INVALID_ARGUMENT")
    assert realm.rookery("auth", "create", "w", "--role", "worker", "--surface", "shop").code == 0


@pytest.mark.parametrize("change", ["rotate", "revoke"])
def test_a_changed_credential_ends_its_connections_and_is_refused(realm: Realm, change: str):
    assert realm.rookery("auth", "create", "anna", "--role", "client").code == 0
    former = url_of(realm, "anna")

    async def scenario() -> None:
        client = await opened(former)
        done = await asyncio.to_thread(realm.rookery, "auth", change, "anna")
        assert done.code == 0, done
        await until(lambda: client.is_closed, "the connection ends")
        await client.close()

    asyncio.run(scenario())
    assert refused(former)
    if change == "rotate":
        assert not refused(url_of(realm, "anna"))
        return
    assert Store(realm.server.store).credentials.get(realm.name, "anna") is None
    assert realm.rookery("auth", "revoke", "anna").err.startswith("CREDENTIAL_NOT_FOUND: ")


def test_a_revoked_role_is_not_made_again_by_itself(realm: Realm):
    realm.rookery("auth", "url", "driver")
    assert realm.rookery("auth", "revoke", "driver").code == 0
    with pytest.raises(Refused, match="CREDENTIAL_NOT_FOUND"):
        realm.server.credential(Role.DRIVER, realm=realm.name)


@pytest.mark.parametrize("change", ["rotate", "revoke"])
def test_the_credential_of_a_running_node_is_left_alone(realm: Realm, change: str):
    url = realm.server.url_for(Role.NODE, realm=realm.name)
    ended = realm.rookery("auth", change, "node")
    assert (ended.code != 0, ended.err.split(":")[0]) == (True, "REALM_IN_USE")
    assert not refused(url)


def test_realms_on_one_server_do_not_see_each_other_with_stock_clients(realm: Realm):
    other = f"{realm.name}-beside"

    async def scenario() -> None:
        errors: list[str] = []

        async def note(error: Exception) -> None:
            errors.append(str(error).lower())

        for role in (Role.NODE, Role.OPERATOR, Role.CLIENT, Role.AUDITOR):
            errors.clear()
            url = realm.server.url_for(role, realm=other)
            client = await opened(url, error_cb=note)
            await client.subscribe(f"rookery.{realm.name}.ev.>")
            await client.subscribe(f"_INBOX.{realm.name}.>")
            await client.publish(f"rookery.{realm.name}.api.run.s", b"{}")
            await client.publish(f"$JS.API.STREAM.INFO.ROOKERY_{realm.name}_JOURNAL", b"")
            await client.flush()
            await until(lambda: len(errors) == 4, f"the server refuses {role}")
            assert all("permissions violation" in error for error in errors)
            await client.close()

    realm.write("one", 1)
    asyncio.run(scenario())
