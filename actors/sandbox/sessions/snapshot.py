"""A session as sealed bytes; nothing is read from them before their MAC is checked.

Layout: magic; MAC; header, body and memories, each after its length, encrypted together. Header and
body are JSON, because calls and results contain integers of any size.

The same session has the same bytes under the same key, because they name the snapshot. So there is
no random nonce: AES-256 in counter mode starts from the first half of the MAC of what it encrypts,
as in SIV (RFC 5297). Two snapshots share a counter only if they are equal.

Older snapshots are not encrypted, and have their MAC at the end.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final, NamedTuple

import msgspec
from Crypto.Cipher import AES
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import Image, Tool
from rookery.actors.sandbox.sessions.guest_run import SavedRun
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.schemas.agents import ConversationOrigin
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.run import SNAPSHOT_VERSION, Language, SessionLimits

__all__ = [
    "SavedSession",
    "Snapshot",
    "SnapshotHeader",
    "open_snapshot",
    "relabelled",
    "seal",
    "snapshot_id",
]

_MAGIC: Final = b"ROOKSEAL"
_CLEAR_MAGIC: Final = b"ROOKSNAP"
_MAC = "sha256"
_MAC_BYTES = 32
_IV_BYTES = 16
_LENGTH_BYTES = 4
_CHUNK_BYTES = 1 << 20


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
    conversation: ConversationOrigin | UnsetType = UNSET
    """What a session begins with that is restored from this snapshot; unset if it is empty."""


class SavedSession(msgspec.Struct):
    """A session: an image, the logs of the runs since, and a suspended run."""

    limits: SessionLimits
    created_at: int
    base: Image
    history: list[RunLog]
    turn: SavedRun | None = None
    mentioned: tuple[str, ...] | UnsetType = UNSET
    """What the runs that the image contains have mentioned; unset if all of them got all names."""


class Snapshot(NamedTuple):
    """A sealed session; its id is a digest of its bytes."""

    id: str
    data: bytes

    @staticmethod
    def reseal(key: bytes, new_key: bytes, data: bytes) -> bytes:
        """The bytes of a snapshot, sealed with another key."""
        parts = _authentic(key, data)
        _read_header(parts)
        return _encrypted(new_key, [parts])


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
    data = _encrypted(key, [p for part in parts for p in (_length(part), part)])
    return Snapshot(snapshot_id(data), data)


def _length(part: bytes) -> bytes:
    return len(part).to_bytes(_LENGTH_BYTES)


def relabelled(key: bytes, data: bytes, **changed: Any) -> Snapshot:
    """The snapshot with another header."""
    parts = _authentic(key, data)
    header = msgspec.structs.replace(_read_header(parts), **changed)
    return seal(key, header, _read_body(parts))


def _encrypted(key: bytes, pieces: Sequence[bytes]) -> bytes:
    mac = hmac.new(_derived(key, "mac"), digestmod=_MAC)
    for piece in pieces:
        mac.update(piece)
    tag = mac.digest()
    cipher = _cipher(key, tag)
    data = BytesIO()
    data.write(_MAGIC + tag)
    for piece in pieces:  # In chunks, because it may have hundreds of megabytes.
        view = memoryview(piece)
        for at in range(0, len(view), _CHUNK_BYTES):
            data.write(cipher.encrypt(view[at : at + _CHUNK_BYTES]))
    return data.getvalue()


def _authentic(key: bytes, data: bytes) -> bytes:
    """Header, body and memories, each after its length, once their MAC is checked."""
    start = len(_MAGIC) + _MAC_BYTES
    if data.startswith(_MAGIC) and len(data) > start:
        tag = data[len(_MAGIC) : start]
        parts: bytes = _cipher(key, tag).decrypt(memoryview(data)[start:])
        _check_mac(_derived(key, "mac"), parts, tag)
        return parts
    sealed, tag = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    _check_mac(key, sealed, tag)
    if not sealed.startswith(_CLEAR_MAGIC):
        raise Refused("SNAPSHOT_CORRUPT", "these bytes are not a snapshot")
    return sealed[len(_CLEAR_MAGIC) :]


def _check_mac(key: bytes, sealed: bytes, tag: bytes) -> None:
    if not hmac.compare_digest(hmac.digest(key, sealed, _MAC), tag):
        raise Refused(
            "SNAPSHOT_CORRUPT",
            "the snapshot was damaged, or sealed with another key",
            hint="every realm has its own key: name the realm in which it was taken",
        )


def _cipher(key: bytes, tag: bytes) -> Any:
    initial = tag[:_IV_BYTES]
    return AES.new(_derived(key, "encrypt"), AES.MODE_CTR, nonce=b"", initial_value=initial)


def _derived(key: bytes, purpose: str) -> bytes:
    """A key for one purpose: the same one for both would join their weaknesses."""
    return hmac.digest(key, f"rookery.snapshot.{purpose}.v1".encode(), _MAC)


def _read_header(parts: bytes) -> SnapshotHeader:
    """Check the version, and read the header."""
    head = next(_parts(parts))
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
    parts = _authentic(key, data)
    header = _read_header(parts)
    require(header.language, header.build, header.start)
    if tools is not None:
        _require_tools(header.tools, tools)
    return header, _read_body(parts)


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


def _read_body(parts: bytes) -> SavedSession:
    _, body, memory, *more = _parts(parts)
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


def _parts(measured: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(measured):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(measured[at:begin])
        yield measured[begin:at]
