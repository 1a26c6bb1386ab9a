"""Clients resolve and read for a session: asynchronous, blocking, by subjects and by command."""

from __future__ import annotations

import json
from collections.abc import Awaitable

import pytest

from rookery.bus import connect_sync
from rookery.bus.client.client import Client
from rookery.bus.client.sync import SyncClient
from rookery.bus.roles import Role
from rookery.ops.config import address_of
from rookery.schemas.errors import CodedError
from rookery.schemas.resources import READ_BYTES_MAX
from rookery.schemas.seed.refs import PrivacyClass
from tests.resources.conftest import REALM, Realm


async def code(work: Awaitable[object]) -> str:
    with pytest.raises(CodedError) as caught:
        await work
    return caught.value.code


def test_a_resolution_is_read_with_its_grant_by_its_session_alone(realm: Realm):
    async def scenario(client: Client) -> None:
        found = await client.resolve_resource("mine", "crm://ann")
        ref = found.resolution.content_ref.as_str()
        piece = await client.read_resource("mine", found, max_bytes=4)
        assert (piece.data, piece.truncated, piece.next_offset, piece.mime) == (
            b"name",
            True,
            4,
            "text/plain",
        )
        assert (await client.read_resource("mine", found, offset=6)).data == b"Ann"
        assert await code(client.read_resource("mine", ref)) == "PERMISSION_DENIED"
        assert await code(client.read_resource("yours", found)) == "SEALED_VALUE_CORRUPT"
        other = (await client.resolve_resource("mine", "crm://photo")).resolution
        moved = type(found)(resolution=other, grant=found.grant)
        assert await code(client.read_resource("mine", moved)) == "SEALED_VALUE_CORRUPT"

    realm.visit(scenario)


def test_a_capture_that_no_message_holds_is_read_in_pieces(realm: Realm):
    size = 3 * READ_BYTES_MAX + 5

    async def scenario(client: Client) -> None:
        piece = await client.read_resource("pieces", "crm://long", max_bytes=size)
        assert piece.data == b"x" * size
        assert (piece.offset, piece.truncated, piece.next_offset) == (0, True, None)
        tail = await client.read_resource("pieces", "crm://long", max_bytes=size, offset=1)
        assert len(tail.data) == size

    realm.visit(scenario)


def test_content_above_the_readable_classes_has_a_ref_and_no_bytes(realm: Realm):
    async def scenario(client: Client) -> None:
        for uri in ("crm://salary", "memory://salaries"):
            found = await client.resolve_resource("classes", uri)
            assert found.resolution.privacy is PrivacyClass.SENSITIVE
            assert await code(client.read_resource("classes", found)) == "PERMISSION_DENIED"
            assert await code(client.read_resource("classes", uri)) == "PERMISSION_DENIED"
            ref = found.resolution.content_ref.as_str()
            stored = await client.blobs.get(ref.removeprefix("blob:"))
            assert stored.startswith(b"rookery-sealed-content")
        open_one = await client.resolve_resource("classes", "memory://prices")
        assert open_one.resolution.privacy is PrivacyClass.PUBLIC
        assert open_one.resolution.parser_version == "static.resource.resolver.v1"
        assert open_one.resolution.redacted_summary == "resource resolved to content ref"
        assert (await client.read_resource("classes", open_one)).data == b'{"tea": 3}'

    realm.visit(scenario)


@pytest.mark.parametrize("uri", ["memory://salaries", "crm://salary"])
@pytest.mark.parametrize(("role", "may"), [(Role.OPERATOR, True), (Role.CLIENT, False)])
def test_a_role_is_answered_with_content_up_to_its_highest_class(
    realm: Realm, role: Role, may: bool, uri: str
):
    """Of a sensitive resource, others get name, size and digest."""
    path = realm.folder / f"store/credentials/{REALM}.{role}.json"
    with connect_sync(address_of(realm.url_for(role)), realm=REALM, credential=path) as client:
        found = client.resolve_resource("classes", uri)
        assert found.resolution.privacy is PrivacyClass.SENSITIVE
        assert found.resolution.content_ref.as_str().startswith("blob:")
        for asked in (found, uri):
            if may:
                assert client.read_resource("classes", asked).data
                continue
            with pytest.raises(CodedError, match="PERMISSION_DENIED: the content is sensitive"):
                client.read_resource("classes", asked)


def test_refusals_have_the_contracts_words_and_a_code(realm: Realm):
    async def scenario(client: Client) -> None:
        for uri, expected, text in (
            ("x", "RESOURCE_URI_INVALID", "resource URI must include a scheme"),
            ("://x", "RESOURCE_URI_INVALID", "resource URI scheme must not be empty"),
            ("a b://", "RESOURCE_URI_INVALID", "ResourceScheme must use URI scheme characters"),
            ("ftp://x", "RESOURCE_SCHEME_UNKNOWN", "resource URI scheme has no registered"),
        ):
            with pytest.raises(CodedError, match=text) as caught:
                await client.resolve_resource("words", uri)
            assert caught.value.code == expected
        too_large = client.resolve_resource("words", "crm://ann", max_bytes=1 << 30)
        assert await code(too_large) == "RESOURCE_TOO_LARGE"
        assert await code(client.read_resource("words", "")) == "INVALID_ARGUMENT"
        assert await code(client.resolve_resource("_realm", "crm://ann")) == "INVALID_SESSION_ID"
        with pytest.raises(CodedError) as caught:
            await client.read_resource("words", "crm://broken")
        assert "hunter2" not in str(caught.value)

    realm.visit(scenario)


def test_the_schemes_are_listed_with_what_is_below_them(realm: Realm):
    async def scenario(client: Client) -> None:
        listed = {one.scheme: one for one in (await client.resources()).schemes}
        assert sorted(listed) == [
            "blob",
            "crm",
            "file",
            "http",
            "https",
            "journal",
            "mcp",
            "memory",
            "session",
        ]
        assert listed["memory"].names == ("prices", "salaries")
        assert listed["file"].names == ("data",)
        assert listed["http"].names == (f"{realm.site}/open",)
        assert "Customers by name." in listed["crm"].form

    realm.visit(scenario)


def test_the_blocking_client_has_the_same_methods(realm: Realm):
    with SyncClient(Client(realm.url_for(Role.CLIENT), realm=REALM)) as client:
        found = client.resolve_resource("blocking", "crm://photo")
        assert (found.resolution.etag, client.read_resource("blocking", found).data) == (
            "v1",
            b"\x89PNG",
        )
        assert "memory" in [one.scheme for one in client.resources().schemes]


def test_the_commands_list_resolve_and_read(realm: Realm):
    (realm.data / "shell.txt").write_text("one two")
    uri = "file://data/shell.txt"
    listed = realm.rookery("resources", "list")
    assert (listed.code, "memory://<name>" in listed.out) == (0, True)
    resolved = realm.rookery("resources", "resolve", "shell", uri)
    assert resolved.out.startswith("blob:")
    assert resolved.out.endswith("7 bytes text/plain, content_refs_only\n")
    assert realm.rookery("resources", "read", "shell", uri).out == "one two"
    cut = realm.rookery("resources", "read", "shell", uri, "--max-bytes", "3", "--offset", "4")
    assert cut.out == "two"
    told = realm.rookery("resources", "read", "shell", uri, "--max-bytes", "3", "--json")
    assert json.loads(told.out)["truncated"] is True
    saved = realm.rookery("resources", "read", "shell", uri, "--out", "copy.txt")
    assert (saved.code, (realm.folder / "copy.txt").read_text()) == (0, "one two")
    refused = realm.rookery("resources", "read", "shell", "ftp://x")
    assert refused.code > 1
    assert "RESOURCE_SCHEME_UNKNOWN" in refused.err
    assert "rookery resources list" in refused.err
