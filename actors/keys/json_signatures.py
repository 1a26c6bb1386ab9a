"""JSON Web Signatures (RFC 7515) over texts, by the keys that agents publish: Ed25519 and P-256.

Only verification, and only by a key that the caller has chosen: a header names a key, and does not
bring one. The algorithm follows from the key, never from the header alone.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import msgspec
from Crypto.Hash import SHA256
from Crypto.PublicKey import ECC
from Crypto.Signature import DSS

from rookery.actors.keys.ed25519 import is_sound_key, read_public_key, verify_once
from rookery.schemas.digest import canonical_json, decode_base64url, encode_base64url
from rookery.schemas.errors import Refused

__all__ = [
    "json_key_of",
    "key_of_file",
    "verify_json_signature",
    "without_empty",
]

_ED25519: Final = ("OKP", "Ed25519")
_P256: Final = ("EC", "P-256")
_MEMBERS: Final = {_ED25519: ("kty", "crv", "x"), _P256: ("kty", "crv", "x", "y")}
_ALGORITHMS: Final = {_ED25519: ("EdDSA", "Ed25519"), _P256: ("ES256",)}


def json_key_of(found: Any) -> str:
    """The members of a JSON Web Key that make it, as canonical JSON; empty if it is none that is
    known here."""
    if not isinstance(found, dict):
        return ""
    members = _MEMBERS.get((str(found.get("kty")), str(found.get("crv"))), ())
    if not members or not all(isinstance(found.get(name), str) for name in members):
        return ""
    return canonical_json({name: found[name] for name in members}).decode()


def key_of_file(text: str) -> str:
    """The same of a file: a JSON Web Key, a set with one, or a public key in PEM."""
    with suppress(msgspec.DecodeError):
        found = msgspec.json.decode(text)
        keys = found.get("keys", [found]) if isinstance(found, dict) else []
        if len(keys) == 1 and (key := json_key_of(keys[0])):
            return key
        raise Refused("INVALID_ARGUMENT", "the file is no JSON Web Key of Ed25519 or P-256")
    with suppress(ValueError):
        point = ECC.import_key(text)
        if point.curve == "NIST P-256":
            x, y = (int(one).to_bytes(32, "big") for one in point.pointQ.xy)
            encoded = {"x": encode_base64url(x), "y": encode_base64url(y)}
            return json_key_of({"kty": "EC", "crv": "P-256", **encoded})
    x = bytes.fromhex(read_public_key(text))
    return json_key_of({"kty": "OKP", "crv": "Ed25519", "x": encode_base64url(x)})


def verify_json_signature(payload: bytes, protected: str, signature: str, key: str) -> bool:
    """Whether ``key`` has signed the payload under this header; both as in the signature, in
    base64url."""
    try:
        members = msgspec.json.decode(key)
        kind = (members["kty"], members["crv"])
        header = msgspec.json.decode(decode_base64url(protected))
        if header.get("alg") not in _ALGORITHMS[kind] or header.get("crit"):
            return False
        signed = f"{protected}.{encode_base64url(payload)}".encode()
        raw, x = decode_base64url(signature), decode_base64url(members["x"])
        if kind == _ED25519:
            return is_sound_key(x.hex()) and verify_once(signed, raw.hex(), x.hex())
        y = decode_base64url(members["y"])
        point = ECC.construct(
            curve="P-256", point_x=int.from_bytes(x, "big"), point_y=int.from_bytes(y, "big")
        )
        DSS.new(point, "fips-186-3").verify(SHA256.new(signed), raw)
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.DecodeError):
        return False
    return True


def without_empty(value: Any) -> Any:
    """As readers of a signature take a card: without members that say nothing."""
    if isinstance(value, dict):
        found = {name: without_empty(one) for name, one in value.items()}
        return {name: one for name, one in found.items() if one not in ("", [], {}, None)}
    if isinstance(value, list):
        return [one for one in map(without_empty, value) if one not in ("", [], {}, None)]
    return value
