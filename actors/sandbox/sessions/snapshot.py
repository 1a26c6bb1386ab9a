"""A session as sealed bytes. Nothing in them is used before their MAC is checked.

Layout: magic; header, body and memories, each behind its length; MAC over all of it. Header and
body are JSON, which holds integers of any size, as calls and answers do. Owns which snapshots are
refused, and by which code; what is in the body is the session's.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import Image, Tool
from rookery.actors.sandbox.sessions.guest_run import SavedRun
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.run import SNAPSHOT_VERSION, Language, SessionLimits

__all__ = [
    "SavedSession",
    "Snapshot",
    "SnapshotHeader",
    "open_snapshot",
    "relabelled",
    "resealed",
    "seal",
    "snapshot_id",
]

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
    limits: SessionLimits | UnsetType = UNSET
    """Of the realm's session, if not the defaults; those in the body are the sandbox's own."""
    start: int = 0
    """Checksum of the memory that instances of the build began with; 0 in older snapshots."""


class SavedSession(msgspec.Struct):
    """What a session consists of: an image, the runs since, and a run that waits."""

    limits: SessionLimits
    created_at: int
    base: Image
    history: list[RunLog]
    turn: SavedRun | None = None


class Snapshot(NamedTuple):
    """Content-addressed: the same state has the same id."""

    id: str
    data: bytes


def snapshot_id(data: bytes) -> str:
    return f"snap_{digest_bytes(data)}"


def seal(key: bytes, header: SnapshotHeader, saved: SavedSession) -> Snapshot:
    turn = saved.turn
    memories = [saved.base.memory]
    if turn is not None and turn.image is not None:
        memories.append(turn.image.memory)
        turn = msgspec.structs.replace(turn, image=_with_memory(turn.image, b""))
    body = msgspec.structs.replace(saved, base=_with_memory(saved.base, b""), turn=turn)
    parts = [msgspec.json.encode(header), msgspec.json.encode(body), *memories]
    measured = [piece for part in parts for piece in (len(part).to_bytes(_LENGTH_BYTES), part)]
    mac = hmac.new(key, _MAGIC, _MAC)
    for piece in measured:
        mac.update(piece)
    data = b"".join([_MAGIC, *measured, mac.digest()])  # Once: it may be of hundreds of megabytes.
    return Snapshot(snapshot_id(data), data)


def resealed(key: bytes, new_key: bytes, data: bytes) -> bytes:
    """The snapshot for those who have the other key."""
    read_header(key, data)
    sealed = data[:-_MAC_BYTES]
    return sealed + hmac.digest(new_key, sealed, _MAC)


def relabelled(key: bytes, data: bytes, **changed: Any) -> Snapshot:
    """The snapshot with another header."""
    header = msgspec.structs.replace(read_header(key, data), **changed)
    return seal(key, header, _read_body(data[:-_MAC_BYTES]))


def read_header(key: bytes, data: bytes) -> SnapshotHeader:
    """The header of a snapshot that is ours."""
    sealed, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, sealed, _MAC), mac):
        raise Refused(
            "SNAPSHOT_CORRUPT",
            "the snapshot was damaged, or sealed with another key",
            hint="every realm has its own: name the one it was taken in",
        )
    if not sealed.startswith(_MAGIC):
        raise Refused("SNAPSHOT_CORRUPT", "these bytes are no snapshot")
    head = next(_parts(sealed))
    version = msgspec.json.decode(head, type=_Version).version
    if version != SNAPSHOT_VERSION:
        raise Refused(
            "SNAPSHOT_VERSION_MISMATCH",
            f"the snapshot has version {version}, and this reads {SNAPSHOT_VERSION}",
        )
    return msgspec.json.decode(head, type=SnapshotHeader)


def open_snapshot(
    key: bytes,
    data: bytes,
    require: Callable[[Language, str, int], None],
    tools: Mapping[str, Tool] | None,
) -> tuple[SnapshotHeader, SavedSession]:
    """Refused unless it is whole, of this version, of a guest build that is to be had (``require``
    says so), and all tools that its session knew are offered again, with the same schemas - if it
    is to go on with these."""
    header = read_header(key, data)
    require(header.language, header.build, header.start)
    if tools is not None:
        _require_tools(header.tools, tools)
    return header, _read_body(data[:-_MAC_BYTES])


def _require_tools(known: Mapping[str, str], tools: Mapping[str, Tool]) -> None:
    for name, digest in known.items():
        if name not in tools or tools[name].schema_digest != digest:
            how = "with another schema" if name in tools else "no more"
            raise Refused("SNAPSHOT_CAPABILITY_MISMATCH", f"tool {name!r} is offered {how}")


class _Version(msgspec.Struct, frozen=True):
    version: int


def _read_body(sealed: bytes) -> SavedSession:
    _, body, memory, *more = _parts(sealed)
    try:
        saved = msgspec.json.decode(body, type=SavedSession)
    except msgspec.MsgspecError as error:
        raise Refused("SNAPSHOT_CORRUPT", f"the snapshot is of another make: {error}") from None
    saved.base = _with_memory(saved.base, memory)
    if saved.turn is not None and saved.turn.image is not None:
        saved.turn.image = _with_memory(saved.turn.image, *more)
    return saved


def _with_memory(image: Image, memory: bytes) -> Image:
    return msgspec.structs.replace(image, memory=memory)


def _parts(sealed: bytes) -> Iterator[bytes]:
    at = len(_MAGIC)
    while at < len(sealed):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(sealed[at:begin])
        yield sealed[begin:at]
