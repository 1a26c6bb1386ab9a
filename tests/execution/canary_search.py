"""Where no secret may be: streams, lists, exports, logs, metrics; and how to search them."""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import msgspec

from rookery.actors.sandbox.sessions.snapshot import open_snapshot
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.bus.sealed_secrets import SealedSecrets
from rookery.ops.keys import ConfiguredKeys
from rookery.ops.keys.sealing_keys import SNAPSHOTS
from tests.execution.realm_fixture import Serving
from tests.nodes import sealing_key_of
from tests.stock_client import stock

__all__ = ["expect_hidden", "expect_no_part", "forms", "images", "parts", "shown", "stored"]


def stored(serving: Serving) -> bytes:
    """Every message of every stream of the realm, but for the images of memory."""

    realm = serving.realm

    async def read() -> bytes:
        found: list[bytes] = []
        async with stock(serving.server, realm, "admin") as client:
            jetstream = await client.admin()
            for stream in await jetstream.streams_info():
                name = stream.config.name
                if realm in name and "IMAGES" not in name.upper():
                    found += await _contents(jetstream, stream)
        return b"\n".join(found)

    return asyncio.run(read())


async def _contents(jetstream: Any, stream: Any) -> list[bytes]:
    """Subjects, headers and bodies, by a consumer: one message at a time comes as base64."""
    found: list[bytes] = []
    if stream.state.messages:
        consumer = await jetstream.subscribe(">", stream=stream.config.name, ordered_consumer=True)
        for _ in range(stream.state.messages):
            message = await consumer.next_msg(timeout=60)
            found += [message.subject.encode(), message.data or b""]
            found.append(json.dumps(message.headers or {}).encode())
        await consumer.unsubscribe()
    return found


def images(serving: Serving) -> bytes:
    """The opened images of all sessions: the memory of their programs, and the results in their
    logs."""
    server, realm = serving.server, serving.realm

    async def read() -> bytes:
        bus = JetStreamBus(server.url_for(Role.NODE, realm=realm), realm=realm, sync="always")
        await bus.start()
        try:
            path = Path(sealing_key_of(server, realm)["ROOKERY_NODE_SEALING_KEY"])
            keys = ConfiguredKeys("", path, {})
            await asyncio.to_thread(keys.read)
            key = await SealedSecrets(bus.secrets, realm, keys, os.urandom).get(SNAPSHOTS)
            assert key is not None
            digests = await bus.images.digests()
            return b"\n".join([_opened(key, await bus.images.get(one)) for one in digests])
        finally:
            await bus.stop()

    return asyncio.run(read())


def _opened(key: bytes, data: bytes) -> bytes:
    _, session = open_snapshot(key, data, lambda *_: None, None)
    suspended = [] if session.turn is None or session.turn.image is None else [session.turn.image]
    memories = [zlib.decompress(one.memory) for one in (session.base, *suspended)]
    return b"\n".join([*memories, msgspec.json.encode(session.history)])


def shown(serving: Serving, *run_ids: str) -> bytes:
    """What lists, exports, logs and metrics say."""
    export = serving.folder / f"export-{token_hex(4)}.jsonl"
    commands = [
        ("runs", "list"),
        ("sessions", "list"),
        ("approvals", "list", "--all"),
        ("tools", "list"),
        ("leases", "list"),
        ("secrets", "list"),
        ("doctor",),
        ("journal", "export", str(export)),
        *(("runs", "show", run_id) for run_id in run_ids),
    ]
    said = [serving.rookery(*words) for words in commands]
    texts = [f"{one.out}{one.err}" for one in said]
    with urlopen(f"{serving.node.health}/metrics", timeout=60) as page:
        texts.append(page.read().decode())
    assert "rookery_tool_call" in texts[-1]
    texts += [path.read_text(errors="replace") for path in serving.folder.glob("*.log")]
    return "\n".join(texts).encode() + export.read_bytes()


def forms(canary: str) -> list[bytes]:
    """Plain, base64 at every alignment, and hex."""
    data = canary.encode()
    aligned = [b64encode(b"\0" * shift + data)[4 if shift else 0 : -4] for shift in range(3)]
    return [data, *aligned, data.hex().encode(), data.hex().upper().encode()]


def expect_hidden(haystack: bytes, canary: str) -> None:
    found = [form for form in forms(canary) if form in haystack]
    assert not found, f"{len(found)} forms of the canary are there"


def parts(canary: str) -> list[bytes]:
    """Every form, percent-encoding, and each of its halves of sixteen characters."""
    cut: Iterable[str] = (canary[:16], canary[16:32], canary[-16:])
    return [*forms(canary), quote(canary, safe="").encode(), *(one.encode() for one in cut)]


def expect_no_part(haystack: bytes, canary: str) -> None:
    found = [part for part in parts(canary) if part in haystack]
    assert not found, f"{len(found)} parts of the canary are there"
