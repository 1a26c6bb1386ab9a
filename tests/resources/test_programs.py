"""Programs of both languages resolve and read resources; a call of them is a call as any."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from rookery.bus.client.client import Client
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import RunStatus
from tests.resources.conftest import Realm
from tests.tools.builtin.web_server import answer

READ = "resource_read"


async def value(client: Client, session: str, code: str, **options: Any) -> Any:
    done = await client.run(session, code, **options)
    assert done.status is RunStatus.OK, done.error
    return done.result


async def refusal(client: Client, session: str, call: str) -> str:
    """The code of the error that the program sees."""
    code = (
        f"try:\n    seen = await {call}\nexcept Exception as error:\n"
        "    seen = getattr(error, 'code', type(error).__name__)\nseen"
    )
    return str(await value(client, session, code))


def test_a_program_reads_each_kind_of_resource(realm: Realm):
    (realm.data / "a.txt").write_text("grün")
    realm.web.pages["/open/page"] = answer(b"\xff\x00", "Content-Type: image/x-odd", 'ETag: "v7"')

    async def scenario(client: Client) -> None:
        for uri, data, mime in (
            ("file://data/a.txt", "grün".encode(), "text/plain"),
            (f"{realm.site}/open/page", b"\xff\x00", "image/x-odd"),
            ("memory://prices", b'{"tea": 3}', "application/json"),
            ("crm://ann", b"name: Ann", "text/plain"),
            ("crm://photo", b"\x89PNG", "image/png"),
        ):
            piece = await value(client, "kinds", f"await {READ}({uri!r})")
            read = base64.b64decode(piece["base64"]) if piece["base64"] else piece["text"].encode()
            assert (read, piece["mime"]) == (data, mime), uri
            assert piece["ref"] == f"blob:{digest_bytes(data)}"
            assert (piece["truncated"], piece["next_offset"]) == (False, None)
            resolution = piece["resolution"]
            assert resolution["uri"] == uri
            assert resolution["content"]["content_hash"] == digest_bytes(data)

    realm.visit(scenario)


def test_a_typescript_program_reads_too(realm: Realm):
    async def scenario(client: Client) -> None:
        code = (
            'const found = await resource_resolve("memory://prices");\n'
            "const piece = await resource_read(found.ref, 4);\n"
            "[piece.text, piece.truncated, piece.next_offset]"
        )
        assert await value(client, "ts", code, language="typescript") == ['{"te', True, 4]

    realm.visit(scenario)


def test_a_resolution_gives_a_ref_and_a_second_call_gives_bytes_in_pieces(realm: Realm):
    (realm.data / "long.txt").write_text("aä" * 100)

    async def scenario(client: Client) -> None:
        code = (
            "found = await resource_resolve('file://data/long.txt', max_bytes=100)\n"
            "parts, at = [], 0\n"
            "while at is not None:\n"
            "    piece = await resource_read(found['ref'], max_bytes=8, offset=at)\n"
            "    parts.append(piece['text'])\n"
            "    at = piece['next_offset']\n"
            "[''.join(parts), found['resolution']['truncated'], piece['truncated']]"
        )
        assert await value(client, "pieces", code) == [("aä" * 100)[:66] + "a", True, True]

    realm.visit(scenario)


def test_what_is_refused_has_a_code_that_the_program_sees(realm: Realm):
    async def scenario(client: Client) -> None:
        for uri, code in (
            ("no-scheme", "RESOURCE_URI_INVALID"),
            ("://x", "RESOURCE_URI_INVALID"),
            ("a b://x", "RESOURCE_URI_INVALID"),
            ("ftp://x", "RESOURCE_SCHEME_UNKNOWN"),
            ("FILE://data/a", "RESOURCE_SCHEME_UNKNOWN"),
            ("file://data/none", "RESOURCE_NOT_FOUND"),
            ("memory://none", "RESOURCE_NOT_FOUND"),
            ("memory://salaries", "PERMISSION_DENIED"),
            ("crm://salary", "PERMISSION_DENIED"),
            ("crm://none", "RESOURCE_NOT_FOUND"),
            ("crm://broken", "TOOL_ERROR"),
            ("crm://number", "TOOL_ERROR"),
            ("session://codes/runs/none/result", "RESOURCE_NOT_FOUND"),
            ("journal://other/1", "PERMISSION_DENIED"),
            ("blob:xyz", "RESOURCE_URI_INVALID"),
            (f"image:{'0' * 64}", "PERMISSION_DENIED"),
        ):
            assert await refusal(client, "codes", f"{READ}({uri!r})") == code, uri
        large = "resource_resolve('crm://long', max_bytes=1 << 30)"
        assert await refusal(client, "codes", large) == "RESOURCE_TOO_LARGE"

    realm.visit(scenario)


def test_a_program_cannot_name_a_foreign_blob_into_its_own_facts(realm: Realm):
    async def scenario(client: Client) -> None:
        digest = await client.blobs.put(b"another session's bytes")
        ref = f"blob:{digest}"
        said = f"print('{ref}')\nseen = echo({ref!r})\nseen"
        assert (await value(client, "forger", said))["ref"] == ref
        for uri in (ref, f"blob://{digest}"):
            assert await refusal(client, "forger", f"{READ}({uri!r})") == "PERMISSION_DENIED"
        assert await value(client, "owner", "1", files={"f": b"own"}) == 1
        read = await value(client, "owner", f"(await {READ}('crm://ann'))['ref']")
        assert await refusal(client, "forger", f"{READ}({read!r})") == "PERMISSION_DENIED"

    realm.visit(scenario)


def test_a_run_is_replayed_and_forked_when_its_sources_are_gone(realm: Realm):
    source = realm.data / "fleeting.txt"
    source.write_text("once")
    realm.web.pages["/open/fleeting"] = answer(b"was here")
    code = (
        "found = await resource_resolve('file://data/fleeting.txt')\n"
        f"page = await resource_read('{realm.site}/open/fleeting')\n"
        "text = (await resource_read(found['ref']))['text']\n"
        "[text, page['text']]"
    )

    async def scenario(client: Client) -> None:
        done = await client.run("replayed", code)
        assert done.result == ["once", "was here"], done.error
        asked = len(realm.web.asked)
        source.unlink()
        del realm.web.pages["/open/fleeting"]
        report = await client.replay("replayed", done.run_id)
        assert report["state"] == "equal", report
        facts = [fact async for fact in _ended(client, "replayed")]
        asked_for = [one for one in facts if one["type"].startswith("tool.requested")]
        assert {(one["surface"], one["side_effect"]) for one in asked_for} == {
            ("resources", "read")
        }
        at = next(one for one in facts if one["type"].startswith("tool.completed"))
        await client.fork("replayed", done.run_id, at["position"], "replayed-fork")
        read_again = await value(client, "replayed-fork", "(await resource_read(found['ref']))")
        assert read_again["text"] == "once"
        assert len(realm.web.asked) == asked + 1  # The fork continues behind the first call.

    realm.visit(scenario)


async def _ended(client: Client, session: str) -> Any:
    async for fact in client.events(None, session):
        yield fact
        if fact["type"].startswith("turn.completed"):
            return


def test_rights_and_their_conditions_cover_the_calls(realm: Realm):
    (realm.data / "open.txt").write_text("o")

    async def scenario(client: Client) -> None:
        rule = 'starts_with(args.uri, "file://data/open")'
        await client.create("narrow", rights={"tools": [{"tool": READ, "when": rule}]})
        call = f"{READ}(uri='file://data/open.txt')"
        assert await value(client, "narrow", f"(await {call})['text']") == "o"
        for uri in ("memory://prices", "file://data/secret.txt"):
            assert await refusal(client, "narrow", f"{READ}(uri={uri!r})") == "RIGHT_MISSING"

    realm.visit(scenario)


@pytest.mark.parametrize("part", ["result", "journal"])
def test_a_program_reads_the_results_and_facts_of_its_own_session(realm: Realm, part: str):
    async def scenario(client: Client) -> None:
        session = f"own-{part}"
        first = await client.run(session, "{'answer': 42}")
        if part == "result":
            uri = f"session://{session}/runs/{first.run_id}/result"
            piece = await value(client, session, f"await {READ}({uri!r})")
            assert '"answer":42' in piece["text"]
            assert await refusal(client, "stranger", f"{READ}({uri!r})") == "PERMISSION_DENIED"
            return
        facts = [fact async for fact in _ended(client, session)]
        uri = f"journal://{session}/{facts[0]['seq']}-{facts[-1]['seq']}"
        piece = await value(client, session, f"await {READ}({uri!r}, max_bytes=500_000)")
        assert facts[0]["id"] in piece["text"]
        assert piece["mime"] == "application/jsonl"

    realm.visit(scenario)


def test_of_a_snapshot_there_is_a_ref_and_never_its_bytes(realm: Realm):
    async def scenario(client: Client) -> None:
        run_id = (await client.run("imaged", "secret = 1")).run_id
        await client.snapshot("imaged")
        uri = f"session://imaged/runs/{run_id}/snapshot"
        found = await value(client, "imaged", f"await resource_resolve({uri!r})")
        assert found["ref"].startswith("image:")
        for source in (uri, found["ref"], found["ref"].replace("image", "blob")):
            assert await refusal(client, "imaged", f"{READ}({source!r})") == "PERMISSION_DENIED"

    realm.visit(scenario)
