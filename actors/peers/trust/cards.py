"""Cards: the line by which people introduce a realm, or one session of it, to another realm.

A card has the realm's key with the proof of it, a proposed alias and a checksum, and no secret. Who
reads it compares the words of the fingerprint with the other side, by a way they trust.
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from hashlib import sha3_256
from typing import Final

import msgspec

from rookery.actors.peers.trust.peer_keys import enrolment_fault
from rookery.schemas.errors import Refused
from rookery.schemas.peers.roster import Alias, Enrolment, Name

__all__ = ["PeerCard", "fingerprint"]

_PREFIX: Final = "rookery-peer1:"
_CHECKSUM_BYTES: Final = 4
_WORDS: Final = 8
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"
_FINGERPRINT_DOMAIN: Final = "rookery.peer.fingerprint.v1"


class PeerCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a card says."""

    enrolment: Enrolment
    alias: Alias
    """What its realm proposes to be called."""
    name: Name | None = None
    """Only this session; ``None`` for the whole realm."""

    @property
    def line(self) -> str:
        """The card as one line without blanks."""
        enrolment = self.enrolment
        packed = msgspec.msgpack.encode(
            _PackedCard(
                alias=self.alias,
                name=self.name or "",
                realm=enrolment.realm,
                generation=enrolment.generation,
                key=bytes.fromhex(enrolment.key),
                former_key=bytes.fromhex(enrolment.former_key),
                signature=bytes.fromhex(enrolment.signature),
                former_signature=bytes.fromhex(enrolment.former_signature),
            )
        )
        text = b32encode(packed + _checksum(packed)).rstrip(b"=").decode().lower()
        return _PREFIX + text

    @classmethod
    def read(cls, line: str) -> PeerCard:
        """The card of a line; ``Refused`` if it was mistyped, or its signatures do not prove it."""
        text = line.strip()
        if not text.startswith(_PREFIX):
            raise _invalid(f"it does not begin with {_PREFIX}")
        digits = text.removeprefix(_PREFIX).upper()
        try:
            data = b32decode(digits + "=" * (-len(digits) % 8))
        except ValueError:
            raise _invalid("it has other characters than a to z and 2 to 7") from None
        if b32encode(data).decode().rstrip("=") != digits:  # Unused bits of the last character.
            raise _invalid("its last character is wrong")
        packed, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if _checksum(packed) != checksum:
            raise _invalid("its checksum does not match: a character is wrong or missing")
        try:
            found = msgspec.msgpack.decode(packed, type=_PackedCard)
            card = msgspec.convert(_fields(found), PeerCard)
        except msgspec.MsgspecError as error:
            raise _invalid(str(error)) from None
        if fault := enrolment_fault(card.enrolment):
            raise _invalid(fault)
        return card


class _PackedCard(msgspec.Struct, frozen=True, array_like=True):
    """The card in few bytes: a card is also read aloud, and typed."""

    alias: str
    name: str
    realm: str
    generation: int
    key: bytes
    former_key: bytes
    signature: bytes
    former_signature: bytes


def fingerprint(realm_key: str) -> str:
    """The key in eight words that can be said, of five letters each: 128 bits of its digest."""
    digest = sha3_256(f"{_FINGERPRINT_DOMAIN}\n{realm_key}".encode()).digest()
    numbers = (int.from_bytes(digest[2 * at : 2 * at + 2], "big") for at in range(_WORDS))
    return "-".join(map(_word, numbers))


def _word(number: int) -> str:
    """16 bits: consonants of four bits around vowels of two."""
    return (
        _CONSONANTS[number >> 12]
        + _VOWELS[number >> 10 & 3]
        + _CONSONANTS[number >> 6 & 15]
        + _VOWELS[number >> 4 & 3]
        + _CONSONANTS[number & 15]
    )


def _fields(packed: _PackedCard) -> dict[str, object]:
    enrolment = {
        "realm": packed.realm,
        "generation": packed.generation,
        "key": packed.key.hex(),
        "former_key": packed.former_key.hex(),
        "signature": packed.signature.hex(),
        "former_signature": packed.former_signature.hex(),
    }
    return {"enrolment": enrolment, "alias": packed.alias, "name": packed.name or None}


def _checksum(packed: bytes) -> bytes:
    return sha3_256(packed).digest()[:_CHECKSUM_BYTES]


def _invalid(why: str) -> Refused:
    return Refused(
        "INVALID_ARGUMENT",
        f"this is no card of a peer: {why}",
        hint="the other side prints one: rookery peers card",
    )
