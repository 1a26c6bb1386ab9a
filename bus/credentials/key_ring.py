"""Keys for AES-256-GCM: the newest one seals, all of them open.

As text a ring has one key a line, in hex, the newest last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from Crypto.Cipher import AES

from rookery.schemas.digest import digest_bytes

__all__ = ["ALGORITHM", "KEY_BYTES", "NONCE_BYTES", "KeyRing", "SealedBytes"]

ALGORITHM: Final = "AES-256-GCM"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
KEY_ID_DIGITS: Final = 16


class SealedBytes(NamedTuple):
    """Bytes under a key of a ring."""

    key_id: str
    nonce: bytes
    ciphertext: bytes
    """With the tag, which covers the place, too: the bytes are of no use in another place."""


class KeyRing:
    """At least one key; it never changes."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        last_first = {digest_bytes(key)[:KEY_ID_DIGITS]: key for key in reversed(keys)}
        self._keys = dict(reversed(last_first.items()))
        """A key that is repeated counts where it is last: the last line of a file seals."""

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """The ring of a text; ``ValueError`` if that is none."""
        keys = [bytes.fromhex(line) for line in text.split()]
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise ValueError(f"its lines are not keys of {KEY_BYTES} bytes in hex")
        return cls(keys)

    @property
    def text(self) -> str:
        return "".join(f"{key.hex()}\n" for key in self._keys.values())

    @property
    def ids(self) -> tuple[str, ...]:
        """Each begins the SHA3-256 of its key; the newest is last."""
        return tuple(self._keys)

    @property
    def newest(self) -> str:
        return next(reversed(self._keys))

    def with_key(self, key: bytes) -> KeyRing:
        return KeyRing([*self._keys.values(), key])

    def newest_alone(self) -> KeyRing:
        return KeyRing([self._keys[self.newest]])

    def seal(self, value: bytes, nonce: bytes, *place: str) -> SealedBytes:
        cipher = _cipher(self._keys[self.newest], nonce, place)
        encrypted, tag = cipher.encrypt_and_digest(value)
        return SealedBytes(self.newest, nonce, encrypted + tag)

    def open(self, sealed: SealedBytes, *place: str) -> bytes:
        """``KeyError`` if the ring lacks the key, ``ValueError`` if the bytes were changed or
        belong to another place."""
        cipher = _cipher(self._keys[sealed.key_id], sealed.nonce, place)
        data = sealed.ciphertext
        opened: bytes = cipher.decrypt_and_verify(data[:-TAG_BYTES], data[-TAG_BYTES:])
        return opened


def _cipher(key: bytes, nonce: bytes, place: Sequence[str]) -> Any:
    cipher = AES.new(key, AES.MODE_GCM, nonce=nonce)
    cipher.update("\n".join(place).encode())
    return cipher
