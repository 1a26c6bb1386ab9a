"""A session as sealed bytes. Nothing in them is used before their MAC is checked.

Layout: magic, length of the header, header, body, MAC over all of it. Owns which snapshots are
refused, and by which code; what is in the body is the session's.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from rookery.actors.sandbox.contract import Image, Tool
from rookery.actors.sandbox.run_log import RunLog
from rookery.actors.sandbox.turn import SavedTurn
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.run import SNAPSHOT_VERSION, Language, SessionLimits

__all__ = ["SavedSession", "Snapshot", "SnapshotHeader", "open_snapshot", "seal", "snapshot_id"]

_MAGIC: Final = b"ROOKSNAP"
_MAC = "sha256"
_MAC_BYTES = 32
_LENGTH_BYTES = 4


class SnapshotHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What decides whether the body may be opened here."""

    version: int
    session_id: str
    language: Language
    build: str
    tools: dict[str, str]
    """Name to schema digest."""


class SavedSession(msgspec.Struct):
    """What a session consists of: an image, the runs since, and a run that waits."""

    limits: SessionLimits
    created_at: int
    base: Image
    history: list[RunLog]
    turn: SavedTurn | None = None


class Snapshot(NamedTuple):
    """Content-addressed: the same state has the same id."""

    id: str
    data: bytes


def snapshot_id(data: bytes) -> str:
    return f"snap_{digest_bytes(data)}"


def seal(key: bytes, header: SnapshotHeader, saved: SavedSession) -> Snapshot:
    head = msgspec.json.encode(header)
    parts = [_MAGIC, len(head).to_bytes(_LENGTH_BYTES), head, msgspec.msgpack.encode(saved)]
    sealed = b"".join(parts)
    data = sealed + hmac.digest(key, sealed, _MAC)
    return Snapshot(snapshot_id(data), data)


def read_header(key: bytes, data: bytes) -> SnapshotHeader:
    """The header of a snapshot that is ours."""
    sealed, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, sealed, _MAC), mac):
        raise Refused("SNAPSHOT_CORRUPT", "the snapshot was damaged, or sealed with another key")
    version = _version(sealed)
    if version != SNAPSHOT_VERSION:
        raise Refused(
            "SNAPSHOT_VERSION_MISMATCH",
            f"the snapshot has version {version}, and this reads {SNAPSHOT_VERSION}",
        )
    return msgspec.json.decode(_head(sealed), type=SnapshotHeader)


def open_snapshot(
    key: bytes, data: bytes, builds: Mapping[Language, str], tools: Mapping[str, Tool]
) -> tuple[SnapshotHeader, SavedSession]:
    """Refused unless it is whole, of this version, of a guest build here, and all tools that its
    session knew are offered again, with the same schemas."""
    header = read_header(key, data)
    if builds.get(header.language) != header.build:
        raise Refused(
            "SNAPSHOT_FOREIGN_BUILD",
            f"the snapshot needs the {header.language} guest {header.build[:16]}",
            hint="use the guest build of the node that took the snapshot",
        )
    for name, digest in header.tools.items():
        if name not in tools or tools[name].schema_digest != digest:
            how = "with another schema" if name in tools else "no more"
            raise Refused("SNAPSHOT_CAPABILITY_MISMATCH", f"tool {name!r} is offered {how}")
    begin = len(_MAGIC) + _LENGTH_BYTES + len(_head(data))
    return header, msgspec.msgpack.decode(data[begin:-_MAC_BYTES], type=SavedSession)


class _Version(msgspec.Struct, frozen=True):
    version: int


def _version(sealed: bytes) -> int:
    if not sealed.startswith(_MAGIC):
        raise Refused("SNAPSHOT_CORRUPT", "these bytes are no snapshot")
    return msgspec.json.decode(_head(sealed), type=_Version).version


def _head(data: bytes) -> bytes:
    begin = len(_MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(data[len(_MAGIC) : begin])
    return data[begin : begin + length]
