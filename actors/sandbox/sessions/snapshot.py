"""A session as sealed bytes; nothing is read from them before their MAC is checked.

Layout: magic; header, body and memories, each after its length; MAC over all. Header and body are
JSON, because calls and results contain integers of any size.
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
    """The data that decides whether this sandbox may restore the snapshot."""

    version: int
    session_id: str
    language: Language
    build: str
    tools: dict[str, str]
    """Name to schema digest."""
    limits: SessionLimits | UnsetType = UNSET
    """The limits of the realm's session, if not the defaults; the body has the sandbox's."""
    start: int = 0
    """Checksum of the memory of a new instance; 0 in older snapshots."""


class SavedSession(msgspec.Struct):
    """A session: an image, the logs of the runs since, and a suspended run."""

    limits: SessionLimits
    created_at: int
    base: Image
    history: list[RunLog]
    turn: SavedRun | None = None


class Snapshot(NamedTuple):
    """A sealed session; its id is a digest of its bytes."""

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
    # Copied once, because it may have hundreds of megabytes.
    data = b"".join([_MAGIC, *measured, mac.digest()])
    return Snapshot(snapshot_id(data), data)


def resealed(key: bytes, new_key: bytes, data: bytes) -> bytes:
    """The snapshot, sealed with another key."""
    read_header(key, data)
    sealed = data[:-_MAC_BYTES]
    return sealed + hmac.digest(new_key, sealed, _MAC)


def relabelled(key: bytes, data: bytes, **changed: Any) -> Snapshot:
    """The snapshot with another header."""
    header = msgspec.structs.replace(read_header(key, data), **changed)
    return seal(key, header, _read_body(data[:-_MAC_BYTES]))


def read_header(key: bytes, data: bytes) -> SnapshotHeader:
    """Check the MAC and the version, and read the header."""
    sealed, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not hmac.compare_digest(hmac.digest(key, sealed, _MAC), mac):
        raise Refused(
            "SNAPSHOT_CORRUPT",
            "the snapshot was damaged, or sealed with another key",
            hint="every realm has its own key: name the realm in which it was taken",
        )
    if not sealed.startswith(_MAGIC):
        raise Refused("SNAPSHOT_CORRUPT", "these bytes are not a snapshot")
    head = next(_parts(sealed))
    version = _decode_version(head).version
    if version != SNAPSHOT_VERSION:
        raise Refused(
            "SNAPSHOT_VERSION_MISMATCH",
            f"the snapshot has version {version}, and this node reads {SNAPSHOT_VERSION}",
        )
    return _decode_header(head)


def open_snapshot(
    key: bytes,
    data: bytes,
    require: Callable[[Language, str, int], None],
    tools: Mapping[str, Tool] | None,
) -> tuple[SnapshotHeader, SavedSession]:
    """Open a snapshot. Raises ``Refused`` if it is damaged, of another version, of a guest build
    that ``require`` refuses, or if ``tools`` lacks one of its tools with the same schema."""
    header = read_header(key, data)
    require(header.language, header.build, header.start)
    if tools is not None:
        _require_tools(header.tools, tools)
    return header, _read_body(data[:-_MAC_BYTES])


def _require_tools(known: Mapping[str, str], tools: Mapping[str, Tool]) -> None:
    for name, digest in known.items():
        if name not in tools or tools[name].schema_digest != digest:
            how = "has another schema now" if name in tools else "is not offered any more"
            raise Refused("SNAPSHOT_CAPABILITY_MISMATCH", f"tool {name!r} {how}")


class _Version(msgspec.Struct, frozen=True):
    version: int


# Made once: two threads that decode a type for the first time may crash msgspec (0.22, seen).
_decode_version = msgspec.json.Decoder(_Version).decode
_decode_header = msgspec.json.Decoder(SnapshotHeader).decode
_decode_session = msgspec.json.Decoder(SavedSession).decode


def _read_body(sealed: bytes) -> SavedSession:
    _, body, memory, *more = _parts(sealed)
    try:
        saved = _decode_session(body)
    except msgspec.MsgspecError as error:
        raise Refused("SNAPSHOT_CORRUPT", f"the snapshot is unreadable: {error}") from None
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
