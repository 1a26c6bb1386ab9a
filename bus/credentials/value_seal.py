"""Sealing of values with the realm's key file.

The file has one key a line, in hex; the last one seals, all of them open. It is readable by its
owner only. Every node of the realm needs the same file.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from Crypto.Cipher import AES

from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.protection.sealed_values import SealedValue

__all__ = ["FileSeal"]

ALGORITHM: Final = "AES-256-GCM"
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
KEY_ID_DIGITS: Final = 16


class FileSeal:
    """The port ``ValueSeal`` with keys of a file; used on any thread."""

    def __init__(self, path: Path, realm: str, entropy: Callable[[int], bytes]) -> None:
        self._path, self._realm, self._entropy = path, realm, entropy
        self._keys: dict[str, bytes] = {}
        """By id, the sealing one last."""
        if path.exists():
            self._read()

    def prepare(self) -> None:
        """Create the file if there is none."""
        if not self._keys:
            self._create()
            self._read()

    def seal(self, value: bytes, entity: str, field: str) -> SealedValue:
        """Seal canonical JSON for one field of one entity."""
        if not self._keys:
            raise Refused(
                "SEALING_KEY_MISSING",
                f"this node has no key to hide a value: {self._path} is missing",
                hint="copy the file of another node of the realm",
            )
        key_id = next(reversed(self._keys))
        nonce = self._entropy(NONCE_BYTES)
        cipher = self._cipher(self._keys[key_id], nonce, entity, field)
        encrypted, tag = cipher.encrypt_and_digest(value)
        return SealedValue(
            algorithm=ALGORITHM,
            key_id=key_id,
            nonce=nonce.hex(),
            ciphertext=b64encode(encrypted + tag).decode(),
            digest=digest_bytes(value),
        )

    def open(self, sealed: SealedValue, entity: str, field: str) -> bytes:
        """The JSON of a value that was sealed for this place."""
        key = self._keys.get(sealed.key_id)
        if key is None or sealed.algorithm != ALGORITHM:
            raise Refused(
                "SEALING_KEY_MISSING",
                f"this node lacks key {sealed.key_id[:40]} of a hidden value",
                hint=f"add it to {self._path}, and start the node again",
            )
        try:
            nonce, data = bytes.fromhex(sealed.nonce), b64decode(sealed.ciphertext)
            cipher = self._cipher(key, nonce, entity, field)
            opened: bytes = cipher.decrypt_and_verify(data[:-TAG_BYTES], data[-TAG_BYTES:])
        except ValueError:
            raise Failed(
                "SEALED_VALUE_CORRUPT", f"the hidden value {field} of {entity} was changed"
            ) from None
        return opened

    def _cipher(self, key: bytes, nonce: bytes, entity: str, field: str) -> Any:
        cipher = AES.new(key, AES.MODE_GCM, nonce=nonce)
        cipher.update("\n".join(("rookery.value.v1", self._realm, entity, field)).encode())
        return cipher

    def _create(self) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:  # Another process of the node made it.
            return
        except OSError as error:
            raise Refused("SEALING_KEY_INVALID", f"{self._path}: {error.strerror}") from None
        with os.fdopen(file, "w") as text:
            text.write(f"{self._entropy(KEY_BYTES).hex()}\n")
            text.flush()
            os.fsync(text.fileno())

    def _read(self) -> None:
        try:
            mode, lines = self._path.stat().st_mode, self._path.read_text().split()
            keys = [bytes.fromhex(line) for line in lines]
        except (OSError, ValueError) as error:
            raise self._invalid(f"it cannot be read: {type(error).__name__}") from None
        if mode & 0o077:
            raise self._invalid("others may read it", hint=f"chmod 600 {self._path}")
        if not keys or any(len(key) != KEY_BYTES for key in keys):
            raise self._invalid(f"its lines are not keys of {KEY_BYTES} bytes in hex")
        self._keys = {digest_bytes(key)[:KEY_ID_DIGITS]: key for key in keys}

    def _invalid(self, why: str, hint: str = "") -> Refused:
        return Refused("SEALING_KEY_INVALID", f"the key file {self._path}: {why}", hint=hint)
