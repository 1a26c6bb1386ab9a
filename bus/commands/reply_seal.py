"""Reply subjects as facts hold them: readable by nodes only.

A client may name any inbox as its reply subject, and everybody reads facts. A client that knew
another one's inbox could have a node answer there. So the part of a reply subject that names the
connection is encrypted before it reaches a fact, always to the same text, and decrypted when the
reply is sent. Facts of older nodes have plain subjects.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from Crypto.Cipher import AES

from rookery.schemas.digest import digest_bytes

__all__ = ["ReplySeal"]

_MARK: Final = "~"
_TAG_BYTES: Final = 16
_REMEMBERED: Final = 4_096


class ReplySeal:
    """Encrypts and decrypts reply subjects with a key of the realm's nodes."""

    def __init__(self, secret: str) -> None:
        self._key = bytes.fromhex(digest_bytes(f"rookery.reply.v1\n{secret}".encode()))
        self._sealed = _Memory(self._encrypt)
        self._opened = _Memory(self._decrypt)

    def seal(self, subject: str) -> str:
        """The subject for facts; its last token, which a client counts up, stays readable."""
        connection, dot, request = subject.rpartition(".")
        return f"{self._sealed.get(connection)}{dot}{request}" if connection else subject

    def open(self, sealed: str) -> str:
        """The subject to reply to; empty if the text is sealed with another key."""
        if not sealed.startswith(_MARK):
            return sealed
        connection, dot, request = sealed.rpartition(".")
        opened = self._opened.get(connection)
        return f"{opened}{dot}{request}" if opened else ""

    def _encrypt(self, text: str) -> str:
        encrypted, tag = AES.new(self._key, AES.MODE_SIV).encrypt_and_digest(text.encode())
        return _MARK + urlsafe_b64encode(tag + encrypted).rstrip(b"=").decode()

    def _decrypt(self, sealed: str) -> str:
        text = sealed.removeprefix(_MARK)
        try:
            data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            cipher = AES.new(self._key, AES.MODE_SIV)
            opened = cipher.decrypt_and_verify(data[_TAG_BYTES:], data[:_TAG_BYTES])
        except ValueError:
            return ""
        return opened.decode()


class _Memory:
    """The newest results of a function."""

    def __init__(self, compute: Callable[[str], str]) -> None:
        self._compute = compute
        self._results: OrderedDict[str, str] = OrderedDict()

    def get(self, text: str) -> str:
        found = self._results.get(text)
        if found is None:
            found = self._results[text] = self._compute(text)
            if len(self._results) > _REMEMBERED:
                self._results.popitem(last=False)
        return found
