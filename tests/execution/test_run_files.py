"""The files of a session from outside: put, got, listed and removed by every client, on record, and
the same after a rebuild, a replay, a fork and a restore.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable

import pytest

from rookery.bus.client.client import Client
from rookery.bus.client.run_request import FILE_BYTES_MAX
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, RunStatus
from tests.execution.realm_fixture import Serving
from tests.stock_client import Stock, until

LARGE = bytes(range(256)) * 8_192
"""Two mebibytes: no message holds it."""


def with_client(driving: Serving, scenario: Callable[[Client], Awaitable[None]]) -> None:
    async def connected() -> None:
        async with Client(driving.url, realm=driving.realm) as client:
            await scenario(client)

    asyncio.run(connected())


def test_a_file_is_put_used_listed_got_and_removed(driving: Serving):
    async def scenario(client: Client) -> None:
        await client.put_file("files", "data/in.csv", "a,b\n1,2\n")
        read = "import csv\nlist(csv.reader(open('data/in.csv')))"
        assert (await client.run("files", read)).result == [["a", "b"], ["1", "2"]]
        await client.run("files", "open('data/out.txt', 'w').write('ä')")
        listed = [(one.path, one.size_bytes) for one in await client.list_files("files")]
        assert listed[1:] == [("/work/data/in.csv", 8), ("/work/data/out.txt", 2)]
        assert listed[0][0] == "/work/data"
        assert await client.get_file("files", "/work/data/out.txt") == "ä".encode()
        await client.remove_file("files", "data/in.csv")
        assert [one.path for one in await client.list_files("files", "data")] == [
            "/work/data/out.txt"
        ]

    with_client(driving, scenario)


def test_a_stock_client_puts_and_gets_by_documented_subjects(driving: Serving):
    async def scenario(client: Stock) -> None:
        put = {"files": {"a.txt": {"text": "one"}, "b.bin": {"data": "AAE="}}}
        assert (await client.ask("run", "files-plain", put)).body["status"] == "ok"
        got = (await client.ask("files", "files-plain", {"path": "b.bin"})).body
        assert (got["data"], got["digest"]) == ("AAE=", digest_bytes(b"\0\1"))
        listed = (await client.ask("files", "files-plain", {})).body["files"]
        assert [one["path"] for one in listed] == ["/work/a.txt", "/work/b.bin"]
        removed = await client.ask("run", "files-plain", {"files": {"a.txt": None, "b.bin": None}})
        assert removed.body["status"] == "ok"
        assert (await client.ask("files", "files-plain", {})).body["files"] == []
        facts = await until(lambda: client.inputs("files-plain"), "the feed shows the first run")
        assert facts[0]["request"]["files"]["b.bin"] == {"data": "AAE="}

    driving.visit(scenario)


def test_files_and_inputs_above_the_payload_limit_travel_as_blobs(driving: Serving):
    async def scenario(client: Client) -> None:
        await client.put_file("large-files", "large.bin", LARGE)
        check = "import hashlib\nhashlib.sha3_256(open('large.bin', 'rb').read()).hexdigest()"
        assert (await client.run("large-files", check)).result == digest_bytes(LARGE)
        assert await client.get_file("large-files", "large.bin") == LARGE
        inputs = {"rows": ["x" * 1_000] * 2_000, "n": 2}
        limits = {"memory_mb": 256, "cpu_ms": 30_000, "wall_ms": 60_000}
        counted = await client.run("large-files", "rows * n", inputs=inputs, limits=limits)
        assert counted.status is RunStatus.OK, counted.error
        assert counted.result == inputs["rows"] * 2
        facts = [fact async for fact in _facts_of(client, "large-files", 3)]
        stored = facts[0]["request"]["files"]["large.bin"]
        assert stored == {"blob": digest_bytes(LARGE)}

    with_client(driving, scenario)


async def _facts_of(client: Client, session: str, count: int):
    """The facts that accepted the first inputs of a session."""
    async for fact in client.events("session", session):
        if fact["type"] == "session.input_accepted.v1":
            yield fact
            count -= 1
            if not count:
                return


def test_a_replay_a_fork_and_a_restored_session_have_the_same_files(driving: Serving):
    async def scenario(client: Client) -> None:
        large = LARGE[: FILE_BYTES_MAX * 2]
        await client.put_file("origin", "a.txt", "one")
        put = await client.put_file("origin", "b.bin", large)
        await client.remove_file("origin", "a.txt")
        used = await client.run("origin", "len(open('b.bin', 'rb').read())")
        assert (await client.replay("origin", used.run_id))["state"] == "equal"
        assert (await client.replay("origin", put.run_id))["state"] == "equal"
        taken = await client.snapshot("origin")
        await client.restore("restored", taken["snapshot_id"])
        assert [one.path for one in await client.list_files("restored")] == ["/work/b.bin"]
        assert await client.get_file("restored", "b.bin") == large
        ends = [seq async for seq in _end_of(client, "origin", put.run_id)]
        await client.fork("origin", put.run_id, ends[0], "files-forked")
        assert [one.path for one in await client.list_files("files-forked")] == [
            "/work/a.txt",
            "/work/b.bin",
        ]

    with_client(driving, scenario)


def test_a_typescript_session_has_files_too(driving: Serving):
    async def scenario(client: Client) -> None:
        name, language = "typed-files", Language.TYPESCRIPT
        await client.put_file(name, "in/a.csv", "a,b\n1,2\n", language=language)
        put = await client.put_file(name, "large.bin", LARGE)
        code = (
            "import fs from 'node:fs'\nfs.mkdirSync('/work/out')\n"
            "const text = fs.readFileSync('in/a.csv', 'utf8')\n"
            "fs.writeFileSync('out/table.json', JSON.stringify(text))\n"
            "fs.readFileSync('large.bin').length"
        )
        made = await client.run(name, code, language=language)
        assert made.result == len(LARGE)
        assert [(one.artifact_ref, one.mime) for one in made.artifacts] == [
            ("/work/out/table.json", "application/json")
        ]
        assert await client.artifact(made.artifacts[0]) == b'"a,b\\n1,2\\n"'
        assert await client.get_file(name, "large.bin") == LARGE
        await client.remove_file(name, "large.bin")
        assert [one.path for one in await client.list_files(name)] == [
            *("/work/in", "/work/in/a.csv", "/work/out", "/work/out/table.json")
        ]
        for one in (put, made):
            assert (await client.replay(name, one.run_id))["state"] == "equal"
        taken = await client.snapshot(name)
        await client.restore("typed-restored", taken["snapshot_id"])
        assert await client.get_file("typed-restored", "in/a.csv") == b"a,b\n1,2\n"
        ends = [seq async for seq in _end_of(client, name, put.run_id)]
        await client.fork(name, put.run_id, ends[0], "typed-fork")
        assert await client.get_file("typed-fork", "large.bin") == LARGE

    with_client(driving, scenario)


async def _end_of(client: Client, session: str, run_id: str):
    async for fact in client.events("turn", session, run=run_id):
        if fact["type"] == "turn.completed.v1":
            yield fact["seq"]
            return


READ = {
    Language.PYTHON: "import os\n[x, os.listdir('/work')]",
    Language.TYPESCRIPT: "import fs from 'node:fs'\n;[x, fs.readdirSync('/work')]",
}


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize(
    ("path", "content", "code"),
    [
        ("/etc/passwd", "x", "PERMISSION_DENIED"),
        ("../../etc/passwd", "x", "PERMISSION_DENIED"),
        ("a" * 300, "x", "INVALID_ARGUMENT"),
        ("missing", None, "FILE_NOT_FOUND"),
        ("nul\0", "x", "INVALID_ARGUMENT"),
        ("full", b"x" * (16 << 20), "FILES_FULL"),
    ],
)
def test_a_refused_change_has_a_code_and_leaves_nothing(
    driving: Serving, path: str, content: str | bytes | None, code: str, language: Language
):
    session = f"refused-{language}-{abs(hash((path, code))) % 1_000_000}"

    async def scenario(client: Client) -> None:
        await client.run(session, "x = 1", language=language)
        files = {"first.txt": "1", path: content}
        refused = await client.run(session, "x = 2", files=files, language=language)
        assert refused.error is not None
        assert refused.error.code == code, refused.error
        left = await client.run(session, READ[language], language=language)
        assert left.result == [1, []]

    with_client(driving, scenario)


@pytest.mark.parametrize("path", ["", ".", "a/", "a/..", "/work", "out", "/work/out/", "/"])
def test_a_file_cannot_have_the_path_of_a_folder(driving: Serving, path: str):
    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match=r"INVALID_ARGUMENT.*names a folder.*as in data/in.csv"):
            await client.put_file("no-folders", path, "x")
        with pytest.raises(Refused, match="SESSION_NOT_FOUND"):
            await client.list_files("no-folders")
        await client.put_file("folders", "inner/a.txt", "x")
        for change in (
            client.put_file("folders", "inner", "x"),
            client.get_file("folders", "inner"),
        ):
            with pytest.raises(Refused, match="INVALID_ARGUMENT"):
                await change

    with_client(driving, scenario)


def test_a_removal_makes_no_session(driving: Serving):
    async def scenario(client: Client) -> None:
        with pytest.raises(Refused, match=r"SESSION_NOT_FOUND.*sessions list"):
            await client.remove_file("nobody-made-it", "a.txt")
        with pytest.raises(Refused, match="SESSION_NOT_FOUND"):
            await client.list_files("nobody-made-it")
        changed = await client.run("made-by-code", "1", files={"a.txt": None})
        assert changed.error is not None

    with_client(driving, scenario)


def test_a_missing_blob_and_a_malformed_file_are_refused(driving: Serving):
    async def scenario(client: Stock) -> None:
        gone = {"files": {"a": {"blob": "0" * 64}}}
        assert (await client.ask("run", "odd", gone)).body["error"]["code"] == "BLOB_NOT_FOUND"
        assert (await client.ask("run", "odd", {"code": "1"})).body["result"] == 1
        for file in ({}, {"text": "a", "data": "AA=="}):
            answer = await client.ask("run", "odd", {"files": {"a": file}})
            assert answer.code == "INVALID_ARGUMENT"
        assert (await client.ask("files", "nowhere", {})).code == "SESSION_NOT_FOUND"
        assert (await client.ask("files", "odd", {"path": "a"})).code == "FILE_NOT_FOUND"
        assert (await client.ask("files", "odd", {"path": "/etc"})).code == "PERMISSION_DENIED"

    driving.visit(scenario)


def test_a_put_waits_for_the_run_before_it_and_a_list_does_not(driving: Serving):
    async def scenario(client: Client) -> None:
        limits = {"wall_ms": 60_000}
        code = "import os\nbefore = os.listdir('/work')\nawait pause(600)"
        run = await client.begin("busy-files", code, limits=limits)
        await run.accepted()
        putting = asyncio.create_task(client.put_file("busy-files", "a.txt", "one"))
        assert await client.list_files("busy-files") == ()
        assert not putting.done()
        await run.cancel()
        await putting
        assert [one.path for one in await client.list_files("busy-files")] == ["/work/a.txt"]

    with_client(driving, scenario)


PLOT = """
import os
os.makedirs('/work/out/deep', exist_ok=True)
open('/work/out/plot.svg', 'w').write('<svg/>')
open('/work/out/deep/table.csv', 'w').write('a,b')
open('/work/other.txt', 'w').write('no artifact')
open('/work/later.json', 'w').write('{}')
os.rename('/work/later.json', '/work/out/later.json')
"""


def test_what_a_run_writes_to_out_is_a_content_ref_of_its_result(driving: Serving):
    async def scenario(client: Client) -> None:
        made = await client.run("made", PLOT)
        assert [(one.artifact_ref, one.mime, one.kind) for one in made.artifacts] == [
            ("/work/out/deep/table.csv", "text/csv", "text"),
            ("/work/out/later.json", "application/json", "document"),
            ("/work/out/plot.svg", "image/svg+xml", "image"),
        ]
        plot = made.artifacts[2]
        assert (plot.size_bytes, plot.content_hash) == (6, digest_bytes(b"<svg/>"))
        assert await client.artifact(plot) == b"<svg/>"
        assert not (await client.run("made", "open('/work/out/plot.svg').read()")).artifacts
        again = await client.run("made", "open('/work/out/plot.svg', 'a').write('!')\n1 / 0")
        assert [one.artifact_ref for one in again.artifacts] == ["/work/out/plot.svg"]
        put = await client.put_file("made", "out/given.txt", "from outside")
        assert not put.artifacts
        for one in (made, again):
            report = await client.replay("made", one.run_id)
            assert (report["state"], "artifacts" in report["compared"]) == ("equal", True), report
        assert (await client.result("made", made.run_id)).artifacts == made.artifacts

    with_client(driving, scenario)


def test_artifacts_are_bounded_in_number_and_size_with_a_flag(driving: Serving):
    async def scenario(client: Client) -> None:
        many = "import os\nos.mkdir('/work/out')\n"
        many += "for n in range(40): open(f'/work/out/{n:02}', 'w').write('x')"
        result = await client.run("many-files", many)
        assert (len(result.artifacts), result.artifacts_cut) == (32, True)
        content = base64.b64encode(await client.artifact(result.artifacts[0]))
        assert content == base64.b64encode(b"x")

    with_client(driving, scenario)
