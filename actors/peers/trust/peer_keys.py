"""The keys of peers: derived from one secret of the realm, and what a realm's own key signs.

A key is never stored. The secret has generations; the session's own number counts its keys within
one. The realm itself has the key of the reserved name ``_realm``, with which it enrols itself and
vouches for its sessions: another realm that has paired with it needs no other key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha3_256
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from msgspec.structs import asdict, replace

from rookery.actors.keys.ed25519 import SigningKey, derive_seed, is_sound_key, is_valid_signature
from rookery.schemas.digest import canonical_json, decode_base64url, encode_base64url
from rookery.schemas.errors import Refused
from rookery.schemas.peers.gateways import CardSignature, SignCard
from rookery.schemas.peers.roster import REALM_NAME, Enrolment, PublicKey

__all__ = [
    "VOUCH_MS",
    "RealmKeys",
    "SignedVouch",
    "Vouch",
    "enrolment_fault",
    "peer_id_of",
    "read_vouch",
    "sign_vouch",
]

_KEY_SALT: Final = "rookery.peer.key.v1"
_ID_DOMAIN: Final = "rookery.peer.id.v1"
_ENROLMENT_DOMAIN: Final = "rookery.peer.enrolment.v1"
_VOUCH_DOMAIN: Final = b"rookery.peer.vouch.v1\n"
_KEYS_MAX: Final = 4_096
"""Derived keys that are remembered, of half a kilobyte each."""
VOUCH_MS: Final = 30 * 86_400_000
"""How long a vouch is valid at most. It is made anew after half of that, and until then the same
text: a realm that has verified it need not do so again."""
_VOUCH_BYTES_MAX: Final = 2_048
_SIGNATURE: Final = re.compile("[0-9a-f]{128}")
_SIGNATURES: Final = ("signature", "former_signature")


def peer_id_of(realm_key: str, name: str) -> str:
    """The id of a peer: the same on both sides, and stable while the keys of its session rotate."""
    digest = bytearray(sha3_256(f"{_ID_DOMAIN}\n{realm_key}/{name}".encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80  # Version 8: a form of our own.
    digest[8] = digest[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(digest)))


class RealmKeys:
    """The keys of a realm and its sessions, in the generations whose secrets are at hand."""

    def __init__(self, realm: str, secrets: Mapping[int, bytes]) -> None:
        self._realm, self._secrets = realm, dict(secrets)
        self._derive = lru_cache(maxsize=_KEYS_MAX)(self._derive_key)
        self._vouch = lru_cache(maxsize=_KEYS_MAX)(self._sign_vouch)

    @property
    def generations(self) -> frozenset[int]:
        return frozenset(self._secrets)

    @property
    def public_keys(self) -> dict[int, str]:
        """The realm's own public key by generation."""
        return {number: self.realm_key(number).public_key for number in self._secrets}

    def realm_key(self, generation: int) -> SigningKey:
        """The key of the realm itself."""
        return self.key_of(REALM_NAME, generation, 1)

    def key_of(self, name: str, generation: int, number: int) -> SigningKey:
        """A session's key; ``VAULT_KEY_MISSING`` without the secret of that generation."""
        if generation not in self._secrets:
            raise Refused(
                "VAULT_KEY_MISSING",
                f"the realm's secrets lack generation {generation} of the peers' secret",
                hint="restore the realm's secrets, or: rookery peers rotate --all-keys",
            )
        return self._derive(name, generation, number)

    def enrol(self, generation: int) -> Enrolment:
        """The realm's key of a generation, with the proof by the former one if it is at hand."""
        key = self.realm_key(generation)
        former = self.realm_key(generation - 1) if generation - 1 in self._secrets else None
        unsigned = Enrolment(
            realm=self._realm,
            generation=generation,
            key=key.public_key,
            former_key="" if former is None else former.public_key,
            signature="",
        )
        signed = enrolment_bytes(unsigned)
        return replace(
            unsigned,
            signature=key.sign_bytes(signed),
            former_signature="" if former is None else former.sign_bytes(signed),
        )

    def vouch(self, name: str, generation: int, number: int, now_ms: int) -> str:
        """The realm's word that a session has its key, as an envelope carries it."""
        half_ms = VOUCH_MS // 2
        return self._vouch(name, generation, number, (now_ms // half_ms + 2) * half_ms)

    def _sign_vouch(self, name: str, generation: int, number: int, expires_at_ms: int) -> str:
        realm = self.realm_key(generation)
        key = self.key_of(name, generation, number).public_key
        vouch = Vouch(realm_key=realm.public_key, name=name, key=key, expires_at_ms=expires_at_ms)
        return sign_vouch(vouch, realm)

    def sign_card(self, query: SignCard, generation: int) -> CardSignature:
        """A JSON Web Signature over an agent card: Ed25519 over header and card in base64url, which
        begin as nothing else does that the key signs."""
        key = self.realm_key(generation)
        header = {"alg": "EdDSA", "kid": key.key_id, "typ": "JOSE"}
        if query.keys_url:
            header["jku"] = query.keys_url
        protected = encode_base64url(canonical_json(header))
        signed = f"{protected}.{encode_base64url(canonical_json(query.card))}"
        return CardSignature(
            protected=protected,
            signature=encode_base64url(bytes.fromhex(key.sign_bytes(signed.encode()))),
            key=key.public_key,
            key_id=key.key_id,
        )

    def _derive_key(self, name: str, generation: int, number: int) -> SigningKey:
        salt, info = f"{_KEY_SALT}\n{self._realm}", f"{name}/{generation}.{number}"
        return SigningKey(derive_seed(self._secrets[generation], salt=salt, info=info))


def enrolment_bytes(enrolment: Enrolment) -> bytes:
    """What both keys sign: all fields but the signatures."""
    signed = {name: one for name, one in asdict(enrolment).items() if name not in _SIGNATURES}
    return canonical_json({"domain": _ENROLMENT_DOMAIN, **signed})


def enrolment_fault(enrolment: Enrolment) -> str:
    """Why the signatures of an enrolment do not prove it; empty if they do."""
    signed = enrolment_bytes(enrolment)
    if not is_sound_key(enrolment.key):
        return "its key is no Ed25519 key"
    if not is_valid_signature(signed, enrolment.signature, enrolment.key):
        return "its signature is not that of its key"
    former = enrolment.former_signature
    if former and not is_valid_signature(signed, former, enrolment.former_key):
        return "its signature is not that of the former key"
    return ""


# --- vouches --------------------------------------------------------------------------------------


class Vouch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A realm's word that a session of this name has this key."""

    v: int = 1
    realm_key: PublicKey
    name: str
    key: PublicKey
    expires_at_ms: int


class SignedVouch(NamedTuple):
    """A vouch as it travels. Nothing is verified."""

    vouch: Vouch
    signed: bytes
    signature: str


def sign_vouch(vouch: Vouch, realm_key: SigningKey) -> str:
    """The vouch as it travels."""
    body = canonical_json(vouch)
    return f"{encode_base64url(body)}.{realm_key.sign_bytes(_VOUCH_DOMAIN + body)}"


_decode_vouch = msgspec.json.Decoder(Vouch).decode


def read_vouch(text: str) -> SignedVouch | None:
    """The vouch of a header; ``None`` if it has no such form."""
    encoded, dot, signature = text.partition(".")
    if not dot or len(text) > _VOUCH_BYTES_MAX or not _SIGNATURE.fullmatch(signature):
        return None
    try:
        body = decode_base64url(encoded)
        vouch = _decode_vouch(body)
    except (ValueError, msgspec.MsgspecError):
        return None
    # The decoder skips what it does not know.
    if vouch.v != 1 or encode_base64url(body) != encoded:
        return None
    return SignedVouch(vouch, _VOUCH_DOMAIN + body, signature)
