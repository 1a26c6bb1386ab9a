"""Tampered snapshots: some with a wrong MAC, some sealed with the right key.

The first are refused before anything in them is read. The second need the key; still, the sandbox
checks their sizes.
"""

from __future__ import annotations

import hmac
import struct
import zlib
from collections.abc import Callable
from typing import Final

import msgspec

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.contract import Image
from rookery.actors.sandbox.sessions.snapshot import open_snapshot, seal
from tests.sandbox.session_fixture import KEY, TOOLS

__all__ = ["FOREIGN", "HOSTILE", "sealed_with"]

Change = Callable[[bytes], bytes]

_OFFERED = {tool.name: tool for tool in TOOLS}


def _sealed_again(data: bytes, key: bytes = KEY) -> bytes:
    return data + hmac.digest(key, data, "sha256")


FOREIGN: Final[dict[str, Change]] = {
    "nothing": lambda data: b"",
    "one byte": lambda data: data[:1],
    "only a seal": lambda data: data[-32:],
    "without its seal": lambda data: data[:-32],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "one byte more": lambda data: data + b"\0",
    "a flipped bit of the magic": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a flipped bit of the memory": lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
    "a flipped bit of the seal": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "another length": lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
    "a flipped bit of the tag": lambda data: data[:12] + bytes([data[12] ^ 1]) + data[13:],
    "sealed with another key": lambda data: _sealed_again(data[:-32], b"not ours"),
    "sealed with no key": lambda data: _sealed_again(data[:-32], b""),
    "twice": lambda data: data + data,
    "the wrong way round": lambda data: data[::-1],
    "ten megabytes of nothing": lambda data: bytes(10_000_000),
    "sealed, and not a snapshot": lambda data: _sealed_again(b"ROOKSNIP" + data[8:-32]),
}
"""All are SNAPSHOT_CORRUPT."""


def _image(size: int, count: int, pages: bytes) -> bytes:
    return zlib.compress(struct.pack("<QII", size, 1 << 16, count) + pages, 1)


HOSTILE: Final[dict[str, Callable[[bytes], bytes]]] = {
    "no compression": lambda memory: b"\0" * 99,
    "cut": lambda memory: memory[:-9],
    "too short for its head": lambda memory: zlib.compress(b"x"),
    "a bomb behind a small head": lambda memory: _image(1 << 24, 0, bytes(1 << 28)),
    "more pages than memory": lambda memory: _image(4096, 2, bytes(2 * 4100)),
    "a memory of 16 EiB": lambda memory: _image((1 << 64) - 1, 0, b""),
    "a page outside": lambda memory: _image(1 << 16, 1, struct.pack("<I", 1 << 31) + bytes(4096)),
    "pages that are not there": lambda memory: _image(1 << 24, 4000, b""),
}
"""Memory images; each is SNAPSHOT_CORRUPT when its session is used."""


def sealed_with(sandbox: Sandbox, data: bytes, change: Change) -> bytes:
    """The snapshot with another memory, sealed with the right key."""
    header, saved = open_snapshot(KEY, data, sandbox.require, _OFFERED)
    assert isinstance(saved.base, Image)
    saved.base = msgspec.structs.replace(saved.base, memory=change(saved.base.memory))
    return seal(KEY, header, saved).data
