"""Key files of approvers. A private key that other users can read is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from rookery.actors.approvals import Signer
from rookery.actors.approvals import read_signer as signer_of
from rookery.actors.keys import KEY_BYTES, read_public_key
from rookery.bus.clock import entropy
from rookery.schemas.errors import Refused

__all__ = ["make_key", "read_public_key_file", "read_signer"]

_FILE_BYTES_MAX = 64 << 10
_GROUP_OR_OTHER_BITS = stat.S_IRWXG | stat.S_IRWXO


def make_key(path: Path) -> Signer:
    """A new private key in a new file that only its owner may read."""
    signer = Signer(entropy(KEY_BYTES))
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} exists, and a key file is never overwritten",
            hint=f"use the existing key: --key {path}",
        ) from None
    except OSError as error:
        raise _unusable(path, error) from None
    with os.fdopen(file, "w", encoding="ascii") as key:
        key.write(signer.private_pem.rstrip() + "\n")
    return signer


def read_signer(path: Path) -> Signer:
    """The private key in a file."""
    text, mode = _read(path)
    if mode & _GROUP_OR_OTHER_BITS:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{path} can be read by other users (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}",
        )
    return signer_of(text)


def read_public_key_file(path: Path) -> str:
    """The public key in a file, or that of the private key in it, in hex."""
    return read_public_key(_read(path)[0])


def _read(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            return file.read(_FILE_BYTES_MAX).decode("ascii", "replace"), mode
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError) -> Refused:
    return Refused("INVALID_ARGUMENT", f"the key file {path}: {error.strerror}")
