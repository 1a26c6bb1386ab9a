"""Ids: session ids, UUIDv7, fact ids, reaction ids.

Randomness and time are arguments: every id is a function of its arguments.
"""

from __future__ import annotations

import posixpath
import re
from hashlib import sha3_256

from msgspec import UNSET, UnsetType

from rookery.schemas.errors import Refused

__all__ = [
    "check_client_session",
    "check_command_id",
    "check_file_path",
    "check_session_id",
    "derived_uuid7",
    "fact_id",
    "parse_fact_id",
    "parse_position",
    "parse_reaction_id",
    "reaction_id",
    "uuid7",
]

_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_FACT_ID = re.compile(r"([^.]+)\.(.+)\.(0|[1-9][0-9]{0,18})\Z", re.DOTALL)
_POSITION = re.compile(r"([1-9][0-9]{0,18})(?:\.([1-9][0-9]{0,8}))?")
_FOLDERS = ("/", "/tmp", "/work", "/work/out")  # noqa: S108 - in the sandbox.
_COMMAND_ID = re.compile(r"[\x21-\x7e]{1,128}\Z")


def check_session_id(text: str) -> str:
    """``text`` if it may name a session; a session id is also a safe subject token."""
    if not (isinstance(text, str) and _SESSION_ID.match(text)):
        raise Refused(
            "INVALID_SESSION_ID",
            f"session id {text!r:.80} must match ^[A-Za-z0-9_-]{{1,64}}$",
        )
    return text


def check_client_session(text: str) -> str:
    """``text`` if a client may use a session of this name: those with a first ``_`` are the realm's
    own."""
    if check_session_id(text).startswith("_"):
        raise Refused("INVALID_SESSION_ID", f"session id {text}: ids with a first _ are reserved")
    return text


def check_command_id(text: str) -> str:
    """``text`` if it may be a message id: 1 to 128 visible ASCII characters."""
    if not (isinstance(text, str) and _COMMAND_ID.match(text)):
        raise Refused(
            "INVALID_ARGUMENT",
            f"message id {text!r:.80} must be 1 to 128 visible ASCII characters",
            hint="a UUID makes a good Nats-Msg-Id",
        )
    return text


def check_file_path(path: str) -> str:
    """``path`` if a file of a session may have it; paths are relative to ``/work``."""
    whole = posixpath.normpath(posixpath.join("/work", path))
    if path.rpartition("/")[2] in ("", ".", "..") or whole in _FOLDERS:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path[:80]!r} names a folder of the session",
            hint="name a file below /work, as in data/in.csv; /work/out has the artifacts of runs",
        )
    return path


def uuid7(now_ms: int, random: bytes) -> str:
    """A UUIDv7: 48 bits of time, then 74 of the ten ``random`` bytes."""
    assert len(random) >= 10
    bits = int.from_bytes(random[:10], "big")
    value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | (bits >> 68) << 64
    value |= 0b10 << 62 | bits & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derived_uuid7(now_ms: int, *parts: str) -> str:
    """A UUIDv7 whose random part is a digest of ``parts``: the same cause makes the same id."""
    return uuid7(now_ms, sha3_256("\0".join(parts).encode()).digest())


def fact_id(family: str, key: str, number: int) -> str:
    """The id of an entity's ``number``-th fact."""
    return f"{family}.{key}.{number}"


def parse_fact_id(text: str) -> tuple[str, str, int]:
    """``(family, key, number)`` of a fact id; a key may itself contain dots."""
    found = _FACT_ID.match(text)
    if not found:
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is not a fact id")
    family, key, number = found.groups()
    return family, key, int(number)


def parse_position(text: str) -> tuple[int, int | UnsetType]:
    """The sequence and the number of a fact, from ``SEQ.N``, or the sequence alone from ``SEQ``."""
    found = _POSITION.fullmatch(text)
    if found is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is no position of a fact",
            hint="a sequence like 12, or a fact of its message like 12.3: rookery runs show",
        )
    sequence, number = found.groups()
    return int(sequence), UNSET if number is None else int(number)


def reaction_id(fact: str, family: str) -> str:
    """The command id of ``family``'s reaction to a fact: the same fact is handled once."""
    return f"{fact}/{family}"


def parse_reaction_id(text: str) -> tuple[str, str, int] | None:
    """The parts of the fact id inside a reaction id; ``None`` for other ids."""
    found = _FACT_ID.match(text.rpartition("/")[0])
    if not found:
        return None
    family, key, number = found.groups()
    return family, key, int(number)
