"""Reads and uploads through a node: what clients get, and what the node refuses."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.ports import Filter
from rookery.bus.reads import NodeBlobs, NodeJournal
from rookery.bus.storage import Bucket, JetStreamBlobs
from rookery.bus.storage.blobs import CHUNK_BYTES_MAX, move_images
from rookery.bus.subjects import Subjects
from rookery.schemas.digest import digest_bytes
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.reads import PAGE_MESSAGES_MAX
from tests.bus.journals import Writer, gather, session
from tests.bus.realms import JetStreamRealm, reading

SUBJECTS = Subjects("default")


class Served(NamedTuple):
    bus: JetStreamBus
    client: Connection
    stock: Any


@asynccontextmanager
async def served(realm: JetStreamRealm) -> AsyncIterator[Served]:
    """A node, a client's connection, and one of plain nats-py."""
    everything = realm.server.admin_url
    async with realm.bus() as bus, reading(realm, everything) as client, realm.stock() as stock:
        await bus.request_endpoint.open(lambda _: None)
        yield Served(bus, client, stock)


def _bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


# --- the journal ----------------------------------------------------------------------------------


def test_a_client_reads_the_journal_as_a_node_does(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            journal, read = there.bus.journal, NodeJournal(there.client, SUBJECTS)
            assert await read.end() == 0
            assert await gather(read.scan(Filter())) == []
            writer, turn = Writer(), EntityId("turn", "s 1.%*>")
            for _ in range(3):
                await writer.write(journal, *(session(f"s{n}") for n in range(700)), turn)
            count = 3 * 701
            assert count > PAGE_MESSAGES_MAX
            assert await read.end() == count
            for entity in (turn, session("s5"), session("never")):
                assert await read.last(entity) == await journal.last(entity)
                assert await read.read(entity) == await journal.read(entity)
                assert await read.read(entity, 800) == await journal.read(entity, 800)
            for sequence in (1, count, count + 1):
                assert await read.at(sequence) == await journal.at(sequence)
            for where in (Filter(), Filter("turn"), Filter(key="s7"), Filter(run="run-1")):
                for after in (0, 1500, count, count + 9):
                    every = await gather(journal.scan(where, after))
                    assert await gather(read.scan(where, after)) == every

    asyncio.run(scenario())


def test_a_read_waits_for_a_node_and_fails_without_one(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, reading(jetstream) as client:
            read = NodeJournal(client, SUBJECTS)
            with pytest.raises(Failed, match="PARTITION_UNOWNED: no node of this realm"):
                await read.end(patience_s=0)
            waiting = asyncio.create_task(read.end())
            await bus.request_endpoint.open(lambda _: None)
            assert await waiting == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("subject", "body", "code"),
    [
        ("read.journal", b"", "INVALID_JSON"),
        ("read.journal", b"[]", "INVALID_ARGUMENT"),
        ("read.journal", b'{"read":"purge"}', "INVALID_ARGUMENT"),
        ("read.journal", b'{"read":"page","after":-1}', "INVALID_ARGUMENT"),
        ("read.journal", b'{"read":"page","after":1,"messages_max":100000}', "INVALID_ARGUMENT"),
        ("read.journal", b'{"read":"page","family":"*"}', "INVALID_ARGUMENT"),
        ("read.journal", b'{"read":"page","family":"turn.s1.x"}', "INVALID_ARGUMENT"),
        (
            "read.journal",
            b'{"read":"page","stream":"KV_ROOKERY_default_VAULT"}',
            "INVALID_ARGUMENT",
        ),
        ("read.journal", b'{"read":"last","family":"turn","key":""}', "INVALID_ARGUMENT"),
        ("read.journal", b'{"read":"at","sequence":"1"}', "INVALID_ARGUMENT"),
        ("read.blobs.>.0", b"", "INVALID_ARGUMENT"),
        (f"read.blobs.{'a' * 64}.mark", b"", "INVALID_ARGUMENT"),
        (f"read.blobs.{'a' * 64}.01", b"", "INVALID_ARGUMENT"),
        (f"read.blobs.{'a' * 64}.999999", b"", "INVALID_ARGUMENT"),
        (f"read.images.{'A' * 64}.0", b"", "INVALID_ARGUMENT"),
        (f"read.blobs.{'a' * 64}.0", b'{"source":"elsewhere"}', "INVALID_ARGUMENT"),
        ("upload.short.0", b"x", "INVALID_ARGUMENT"),
        (f"upload.{'a' * 32}.128", b"x", "INVALID_ARGUMENT"),
        (f"upload.{'a' * 32}.0", b"x" * (CHUNK_BYTES_MAX + 1), "PAYLOAD_TOO_LARGE"),
        (f"upload.{'a' * 32}.done", b'{"digest":"x","count":1}', "INVALID_ARGUMENT"),
    ],
)
def test_an_invalid_query_is_refused_with_a_code(
    jetstream: JetStreamRealm, subject: str, body: bytes, code: str
) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            address = f"rookery.default.{subject}".replace(">", "%3E")
            answer = await there.stock.request(address, body, timeout=60)
            assert answer.headers["Rookery-Code"] == code
            assert json.loads(answer.data)["error"]["code"] == code

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.API.STREAM.DELETE.ROOKERY_default_JOURNAL",
        "rookery.default.ev.session.a",
        "rookery.default.cmd.run.a",
        "elsewhere",
        "_INBOX.>",
    ],
)
def test_the_node_has_answers_sent_to_inboxes_only(jetstream: JetStreamRealm, reply: str) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            await Writer().write(there.bus.journal, session("a"))
            digest = await there.bus.blobs.put(b"")
            heard: list[Any] = []

            async def hear(message: Any) -> None:
                heard.append(message)

            await there.stock.subscribe("elsewhere", cb=hear)
            await there.stock.subscribe("rookery.default.ev.>", cb=hear)
            queries = {
                "read.journal": b'{"read":"page"}',
                f"read.blobs.{digest}.0": b"",
                f"upload.{'a' * 32}.0": b"",
            }
            for subject, body in queries.items():
                await there.stock.publish(f"rookery.default.{subject}", body, reply)
            await there.stock.flush()
            assert await NodeJournal(there.client, SUBJECTS).end() == 1
            assert heard == []

    asyncio.run(scenario())


# --- blobs and images -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, CHUNK_BYTES_MAX, 9 * CHUNK_BYTES_MAX + 7])
@pytest.mark.parametrize("kind", ["blobs", "images"])
def test_what_a_client_uploads_is_stored_once_and_leaves_no_pieces(
    jetstream: JetStreamRealm, kind: Any, size: int
) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            blobs, data = NodeBlobs(there.client, SUBJECTS, kind), _bytes(size)
            digest = await blobs.put(data)
            assert digest == digest_bytes(data)
            assert await blobs.put(data) == digest
            assert await blobs.get(digest) == data
            stored = there.bus.blobs if kind == "blobs" else there.bus.images
            assert await stored.get(digest) == data
            staged = Bucket(there.bus.connection, there.bus.subjects, SUBJECTS.uploads_bucket)
            assert await staged.keys(">") == []

    asyncio.run(scenario())


def test_images_cannot_be_read_as_blobs(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            image = await there.bus.images.put(b"ROOKSNAP and memory")
            assert await NodeBlobs(there.client, SUBJECTS, "images").get(image)
            with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                await NodeBlobs(there.client, SUBJECTS).get(image)
            for digest in ("", "*", digest_bytes(b"never put")):
                with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                    await NodeBlobs(there.client, SUBJECTS, "images").get(digest)

    asyncio.run(scenario())


def test_an_upload_with_another_digest_or_a_missing_piece_stores_nothing(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            data = _bytes(2 * CHUNK_BYTES_MAX)
            kept = await there.bus.blobs.put(data)
            upload = "0123456789abcdef" * 2

            async def send(part: int | str, body: bytes) -> dict[str, Any]:
                subject = SUBJECTS.upload("blobs", upload, part)
                answer = await there.stock.request(subject, body, timeout=60)
                found: dict[str, Any] = json.loads(answer.data)
                return found

            wanted = digest_bytes(b"something else")
            done = json.dumps({"digest": wanted, "count": 2}).encode()
            assert await send(0, b"other bytes") == {}
            assert (await send("done", done))["error"]["code"] == "INVALID_ARGUMENT"
            assert await send(1, b"and more") == {}
            assert (await send("done", done))["error"]["code"] == "BLOB_CORRUPT"
            assert not await there.bus.blobs.exists(wanted)
            assert await there.bus.blobs.get(kept) == data
            known = json.dumps({"digest": kept, "count": 2}).encode()
            assert await send("done", known) == {}
            assert await there.bus.blobs.get(kept) == data

    asyncio.run(scenario())


def test_an_upload_that_two_nodes_receive_ends_when_its_client_asks_again(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there, jetstream.bus() as other:
            await other.request_endpoint.open(lambda _: None)
            blobs = NodeBlobs(there.client, SUBJECTS)
            every = [_bytes(5 * CHUNK_BYTES_MAX, seed) for seed in range(4)]
            digests = await asyncio.gather(*(blobs.put(data) for data in every))
            for digest, data in zip(digests, every, strict=True):
                assert await blobs.get(digest) == data

    asyncio.run(scenario())


def test_too_large_an_upload_is_refused_before_it_is_sent(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
                await NodeBlobs(there.client, SUBJECTS).put(b"12345", 4)

    asyncio.run(scenario())


# --- realms of older versions ---------------------------------------------------------------------


def test_the_images_of_an_older_realm_move_with_their_marks_and_pins(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with served(jetstream) as there:
            bus, blobs = there.bus, there.bus.blobs
            images = JetStreamBlobs(Bucket(bus.connection, bus.subjects, SUBJECTS.images_bucket))
            result = await blobs.put(b'{"a":"result"}')
            large = b"ROOKSNAP" + _bytes(3 * CHUNK_BYTES_MAX)
            marked = await blobs.put_marked(large, "s1", 7)
            pinned = await blobs.put_marked(b"ROOKSNAP pinned", "s1", 8)
            assert await blobs.pin(pinned)
            bare = await blobs.put(b"ROOKSNAP bare")
            await images.copy(bare, blobs)  # An earlier move was interrupted here.
            assert await move_images(blobs, images) == 3
            assert await move_images(blobs, images) == 0
            assert await blobs.digests() == [result]
            assert sorted(await images.digests()) == sorted([marked, pinned, bare])
            assert await images.get(marked) == large
            assert [mark.digest for mark in await images.marks()] == [marked]
            assert not await images.delete(pinned)
            assert not [key for key in await _keys(bus) if not key.startswith(result)]

    asyncio.run(scenario())


async def _keys(bus: JetStreamBus) -> list[str]:
    return await Bucket(bus.connection, bus.subjects, SUBJECTS.blobs_bucket).keys(">")
